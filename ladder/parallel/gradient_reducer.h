// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "ladder/comm/process_group.h"
#include "ladder/parallel/comm_hook.h"

namespace ladder {

// The options of Python's DistributedDataParallel that concern the gradients.
struct GradientReducerOptions {
  bool broadcast_buffers = true;        // send rank 0's to all at the end of each averaging
  std::optional<double> bucket_cap_mb;  // MiB per bucket; unset = 25, and 1 for the first
  bool find_unused_parameters = false;  // allow a forward without some parameters; slower
  bool gradient_as_bucket_view = true;  // gradients are views of the buckets; see below
  std::optional<CommHook> comm_hook;    // unset = average in the gradients' own precision
  std::int64_t check_replicas = 0;      // compare the parameters every N-th forward; 0 = see below
};

// Averages the gradients of a module over all ranks, while backward is still computing them, by
// c10d::Reducer, as Python's DistributedDataParallel does. docs/reference/2-ddp-spawn.md explains
// buckets and overlap.
//
// For a Model use DistributedDataParallel, which wraps this class. This class serves any module
// with any forward, which is called as without it:
//
//     GradientReducer reducer(*module, group);
//     auto [score, aux] = module->forward(image, text);
//     loss(score, aux).backward();  // gradients are averaged now
//
// Several forwards may share one backward, and one forward may have several. Nothing is sent by a
// backward that needs no gradient of the module (FreezeGuard), or by torch::autograd::grad, which
// returns this rank's gradients. A rank alone exchanges nothing without a comm_hook.
//
// Collectives: construction, which checks that all ranks built the same module (see
// replica_check.h) and sends rank 0's parameters and buffers to all; and each backward, which
// averages the gradients and then sends rank 0's buffers. Construct it when the module is on its
// device, before the optimizer's first step. The module must outlive it.
//
// Construction throws UsageError for a parameter that another wrapper averages, unless both are
// reducers without gradient_as_bucket_view. A training forward or backward throws it for
//     - a parameter whose requires_grad, strides or node of autograd (torch::load, to()) have
//       changed since; all may be frozen, and single ones with find_unused_parameters;
//     - weights that are trained and that no wrapper averages; see averaged_gradient.h;
//     - a sparse gradient, or a backward within a backward that has the parameters' gradients.
// Backward throws DistributedError for parameters without a gradient, which it names, unless
// find_unused_parameters is set; with that option, forward() must run the module. If a rank is
// lost, it throws: in shared memory a DistributedError, else an error of Gloo or NCCL, which
// call_and_report (launch/exit_status.h) recognises. After an exception of a backward, make a new
// wrapper. Without check_replicas, one line warns of parameters that differ between the ranks.
//
// With gradient_as_bucket_view, which is the default here and not in Python, the next backward
// overwrites a gradient that was kept after zero_grad(): clone what you keep.
//
// Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel
// Training", 2020. Python's counterpart: torch.nn.parallel.DistributedDataParallel.
class GradientReducer {
 public:
  GradientReducer(torch::nn::Module& module, ProcessGroup group,
                  GradientReducerOptions options = {});
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  // Only for find_unused_parameters: `run` calls the module and returns its output: a tensor, a
  // vector, a tuple or pair, also nested as that of torch::nn::LSTM, or a struct with a member
  // std::vector<torch::Tensor> tensors() const.
  template <typename Run>
  auto forward(Run&& run) {
    before_forward();
    auto output = std::forward<Run>(run)();
    after_forward(tensors_of(output));
    return output;
  }

  // The two halves of forward(), for an output of another type. `outputs`: the tensors from which
  // the loss is computed; undefined ones do not count, but one must be there.
  void before_forward();
  void after_forward(std::vector<torch::Tensor> outputs);

  // For gradient accumulation: gradients of a backward, or of a forward(), that runs while the
  // result lives are added up locally and not sent. The next backward outside averages the sum.
  //
  //     for (int i = 0; i < count; ++i) {
  //       const auto pause = reducer.no_sync(i + 1 < count);  // false pauses nothing
  //       ...forward and backward of micro-batch i
  //     }
  //
  // It can be moved, so it may be in a std::optional. One that is assigned to ends before.
  class NoSync {
   public:
    NoSync() = default;
    // `pauses`: how many are in effect. They may end in any order.
    NoSync(std::shared_ptr<int> pauses, bool when) : pauses_(when ? std::move(pauses) : nullptr) {
      if (pauses_) ++*pauses_;
    }
    ~NoSync() {
      if (pauses_) --*pauses_;
    }
    NoSync(NoSync&&) = default;
    NoSync& operator=(NoSync&& other) noexcept {
      const auto ends = std::move(*this);
      pauses_ = std::move(other.pauses_);
      return *this;
    }

   private:
    std::shared_ptr<int> pauses_;
  };
  [[nodiscard]] NoSync no_sync(bool when = true);

  // Sends rank 0's buffers to all ranks: after training forwards without a backward, and before an
  // evaluation after them. A collective.
  void broadcast_buffers();

  // The size of each bucket in bytes, in the order in which they are sent.
  std::vector<std::int64_t> bucket_bytes() const;

 private:
  friend class DistributedDataParallel;
  struct Impl;

  void send_buffers_before_forward();  // instead, as Python does

  template <typename Output>
  static std::vector<torch::Tensor> tensors_of(const Output& output) {
    if constexpr (std::convertible_to<Output, torch::Tensor>) {
      return {output};
    } else if constexpr (requires { output.tensors(); }) {
      return output.tensors();
    } else if constexpr (requires { output.begin(); }) {
      return {output.begin(), output.end()};
    } else {
      std::vector<torch::Tensor> all;
      const auto add = [&all](const auto& part) {
        for (auto& tensor : tensors_of(part)) all.push_back(std::move(tensor));
      };
      std::apply([&](const auto&... part) { (add(part), ...); }, output);
      return all;
    }
  }

  std::shared_ptr<Impl> impl_;
};

}  // namespace ladder
