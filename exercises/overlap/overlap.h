// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "exercises/exercise.h"
#include "exercises/virtual_clock.h"
#include "ladder/comm/process_group.h"

namespace ladder::exercises {

// The ranks of a group, on a virtual clock, with collectives that run while the rank computes. A
// value: copies share the clock.
class AsyncGroup {
 public:
  AsyncGroup(ProcessGroup group, const Link& link)
      : state_(std::make_shared<State>(State{std::move(group), link, {}, {}})) {}

  int world_size() const { return state_->group.world_size(); }

  // Starts the sum over the ranks, behind those started before, and returns at once. `tensor` has
  // the sum after wait() of the result. Do not write to it before.
  Work all_reduce(const torch::Tensor& tensor) const {
    auto sum = tensor.clone();
    state_->group.all_reduce(sum);
    const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
    state_->bytes.push_back(bytes);
    const double end = state_->clock.start_all_reduce(bytes, world_size(), state_->link);
    return Work([state = state_, tensor, sum, end]() mutable {
      state->clock.wait_until(end);
      tensor.copy_(sum);
    });
  }

  // For the grader: the clock, and the bytes of each all-reduce.
  VirtualClock& clock() const { return state_->clock; }
  const std::vector<std::int64_t>& bytes() const { return state_->bytes; }

 private:
  struct State {
    ProcessGroup group;
    Link link;
    VirtualClock clock;
    std::vector<std::int64_t> bytes;
  };
  std::shared_ptr<State> state_;
};

// Averages gradients over the ranks while backward computes the next ones.
class OverlappedReducer {
 public:
  OverlappedReducer() = default;
  virtual ~OverlappedReducer() = default;
  OverlappedReducer(const OverlappedReducer&) = delete;
  OverlappedReducer& operator=(const OverlappedReducer&) = delete;

  // Backward has computed a gradient; those of the last layers come first.
  virtual void add(const torch::Tensor& gradient) = 0;

  // Follows each backward. After it, each gradient that was added is the mean over the ranks.
  virtual void finish() = 0;
};

struct Overlap {
  std::unique_ptr<OverlappedReducer> (*make_reducer)(const AsyncGroup& group,
                                                     std::int64_t bucket_bytes);
};

}  // namespace ladder::exercises
