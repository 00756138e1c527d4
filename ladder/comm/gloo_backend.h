// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ladder/comm/c10d_group.h"
#include "ladder/core/clock.h"

namespace ladder {

// The backend of CPU tensors, for the sources of comm/.

// Gloo whose transfers compare dtype and shape. Gloo itself ends the receiver's process if a
// message is longer than its tensor, and leaves the rest as it was if the message is shorter. So
// each message follows a header, and recv() requests it after that.
//
// Its waits count the time in which this process ran. Gloo's own count all, so they get kNever, and
// a thread looks at Deadlines: if one has passed, it closes the connections.
class Gloo : public c10d::ProcessGroupGloo {
 public:
  // Waits for all ranks.
  Gloo(const C10dStore& store, const ProcessGroup::Setup& setup);

  std::chrono::milliseconds timeout() const { return timeout_; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int tag) override;
  // Throws UsageError: a header is of one sender.
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) override;

 private:
  static constexpr std::int64_t kHeaderBytes = 256;
  static constexpr std::chrono::milliseconds kNever = std::chrono::hours(24 * 365);

  static int next_tag(int& tag) { return std::exchange(tag, (tag + 2) & 0xffffff); }

  void wait(const c10::intrusive_ptr<c10d::Work>& transfer, std::chrono::milliseconds timeout);
  void watch(const std::stop_token& stop);
  void close_connections(std::chrono::milliseconds timeout);

  const std::chrono::milliseconds timeout_;
  std::map<int, int> sent_;
  std::map<int, int> received_;
  std::condition_variable_any stopped_;
  std::jthread watcher_;  // the last member: the base class waits for all that is in progress
};

// A transfer whose end a function waits for.
class FunctionWork : public c10d::Work {
 public:
  explicit FunctionWork(std::function<void(std::chrono::milliseconds)> wait)
      : wait_(std::move(wait)) {}
  bool wait(std::chrono::milliseconds timeout) override {
    wait_(timeout);
    finish();
    return true;
  }

 private:
  std::function<void(std::chrono::milliseconds)> wait_;
};

}  // namespace ladder
