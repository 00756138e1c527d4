// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ladder/comm/c10d_group.h"

namespace ladder {

// The backend of CPU tensors, for the sources of comm/.

// Gloo whose transfers compare dtype and shape. Gloo itself ends the receiver's process if a
// message is longer than its tensor, and leaves the rest as it was if the message is shorter. So
// each message follows a header, and recv() requests it after that.
class Gloo : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int tag) override;

 private:
  static constexpr std::int64_t kHeaderBytes = 256;

  static int next_tag(int& tag) { return std::exchange(tag, (tag + 2) & 0xffffff); }

  std::map<int, int> sent_;
  std::map<int, int> received_;
};

c10::intrusive_ptr<Gloo::Options> gloo_options(const ProcessGroup::Setup& setup);

// Waits for all ranks.
c10::intrusive_ptr<Gloo> make_gloo(const ProcessGroup::Setup& setup, const C10dStore& store);

// A transfer whose end a function waits for.
class FunctionWork : public c10d::Work {
 public:
  explicit FunctionWork(std::function<void(std::chrono::milliseconds)> wait)
      : wait_(std::move(wait)) {}
  bool wait(std::chrono::milliseconds timeout) override {
    wait_(timeout);
    return true;
  }

 private:
  std::function<void(std::chrono::milliseconds)> wait_;
};

// The result of an operation that has ended.
c10::intrusive_ptr<c10d::Work> completed(const std::vector<at::Tensor>& tensors);

}  // namespace ladder
