// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/record_function.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace ladder::exercises {

// What this rank sends, in order, while the object lives: each collective and each send of any
// ProcessGroup in any thread, as LibTorch's dispatcher sees it. One at a time.
class Messages {
 public:
  struct Message {
    std::string operation;  // "allreduce_", "send", ..., or what mark() was given
    std::int64_t bytes = 0;
    float first = 0;  // element, of a float tensor
  };

  Messages() {
    current() = this;
    at::RecordFunctionCallback callback(
        [](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
          current()->record(call);
          return nullptr;
        },
        [](const at::RecordFunction& call, at::ObserverContext* /*context*/) {
          current()->record_end(call);
        });
    handle_ = at::addGlobalCallback(callback.needsInputs(true).needsOutputs(true));
  }
  ~Messages() { at::removeCallback(handle_); }
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  // Adds an entry of another kind, to see its place among the messages.
  void mark(const std::string& what) { add({what}); }

  const std::vector<Message>& all() const { return all_; }

  std::int64_t count(std::string_view operation) const {
    return std::count_if(all_.begin(), all_.end(),
                         [&](const Message& message) { return message.operation == operation; });
  }

  // Sends that still read their tensors.
  std::int64_t unfinished_sends() const {
    return std::ranges::count_if(sends_, [](const auto& work) { return !work->isCompleted(); });
  }

  // The position of the first entry of this kind; the number of entries if there is none.
  std::size_t first(std::string_view operation) const {
    const auto is = [&](const Message& message) { return message.operation == operation; };
    return static_cast<std::size_t>(std::find_if(all_.begin(), all_.end(), is) - all_.begin());
  }

 private:
  static Messages*& current() {
    static Messages* one = nullptr;
    return one;
  }

  void record(const at::RecordFunction& call) {
    constexpr std::string_view kPrefix = "c10d::";
    const std::string_view name = call.name();
    if (!name.starts_with(kPrefix)) return;
    Message message{std::string(name.substr(kPrefix.size())), 0};
    for (const auto& input : call.inputs()) {
      if (!input.isTensorList()) continue;
      for (const at::Tensor& tensor : input.toTensorVector()) {
        message.bytes += static_cast<std::int64_t>(tensor.nbytes());
        if (tensor.is_cpu() && tensor.scalar_type() == torch::kFloat32 && tensor.numel() > 0) {
          message.first = *tensor.const_data_ptr<float>();
        }
      }
    }
    add(std::move(message));
  }

  void record_end(const at::RecordFunction& call) {
    if (std::string_view(call.name()) != "c10d::send") return;
    const std::lock_guard lock(mutex_);
    for (const auto& output : call.outputs()) {
      sends_.push_back(output.toCustomClass<c10d::Work>());
    }
  }

  void add(Message message) {
    const std::lock_guard lock(mutex_);
    all_.push_back(std::move(message));
  }

  std::mutex mutex_;
  std::vector<Message> all_;
  std::vector<c10::intrusive_ptr<c10d::Work>> sends_;
  at::CallbackHandle handle_{};
};

}  // namespace ladder::exercises
