// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/record_function.h>

#include <memory>
#include <string>
#include <utility>

namespace ladder {

// What item() and everything else that reads a value calls: on a GPU, a wait for it.
inline constexpr const char* kHostRead = "aten::_local_scalar_dense";

// Counts the calls of one of LibTorch's operators on this thread, while it lives. One at a time.
class OperatorCalls {
 public:
  explicit OperatorCalls(std::string name) : name_(std::move(name)) {
    counter() = this;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(
        [](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
          if (call.name() == counter()->name_) ++counter()->count_;
          return nullptr;
        }));
  }
  ~OperatorCalls() { at::removeCallback(handle_); }
  OperatorCalls(const OperatorCalls&) = delete;
  OperatorCalls& operator=(const OperatorCalls&) = delete;

  int count() const { return count_; }

 private:
  static OperatorCalls*& counter() {
    thread_local OperatorCalls* one = nullptr;
    return one;
  }

  std::string name_;
  at::CallbackHandle handle_{};
  int count_ = 0;
};

}  // namespace ladder
