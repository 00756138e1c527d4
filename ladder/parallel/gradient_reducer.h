// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

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
  bool broadcast_buffers = true;         // before a training forward, rank 0's go to all
  std::optional<double> bucket_cap_mb;   // MiB a bucket; unset = 25, and 1 for the first
  bool find_unused_parameters = false;   // parameters may take no part in a forward; slower
  bool gradient_as_bucket_view = false;  // gradients lie in the buckets; see below
  std::optional<CommHook> comm_hook;     // unset = average in the gradients' own precision
  std::int64_t check_replicas = 0;       // compare the parameters every N-th forward; 0 = never
};

// Averages the gradients of a module over all ranks, while backward is still computing them.
//
// The engine is LibTorch's own c10d::Reducer, the one under Python's
// DistributedDataParallel. It sorts the parameters into buckets; when backward has
// filled a bucket, its all-reduce starts, and backward goes on with the layers below. When
// backward returns, every rank's gradients are the average, and equal optimizers do equal
// steps: the replicas stay the same without ever being sent again. After the first step the
// buckets are rebuilt in the order in which the gradients really came.
//
// For a network with one input use DistributedDataParallel, which wraps this. This class
// serves any module with any forward:
//
//     GradientReducer reducer(module, group);
//     auto score = reducer.forward([&] { return module.forward(image, text); });
//     loss(score).backward();  // gradients are averaged now
//
// Construction is a collective: it checks that all ranks built the same module (else every
// rank throws, naming the first tensor that differs) and sends rank 0's parameters and
// buffers to all. So are forward (buffers) and backward (gradients), in training: every rank
// runs both equally often. Build it when the module is on its device, before the optimizer's
// first step. The module must outlive it.
//
// Mistakes that PyTorch leaves without a word, or to the next step, throw here:
//   - a backward whose forward did not go through forward(): nothing would be averaged;
//   - parameters that took no part, without find_unused_parameters: their names are given,
//     when backward ends.
//
// A rank that is lost while gradients are under way makes loss.backward() throw: in shared memory a
// DistributedError, else what Gloo or NCCL say; call_and_report (core/exit_status.h) knows such
// texts.
//
// With gradient_as_bucket_view, reset the gradients with module.zero_grad(): LibTorch's
// Optimizer::zero_grad detaches them, which a view does not allow.
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

  // Runs `run`, which calls the module and returns its output: a tensor, or a vector, tuple or
  // pair of tensors.
  template <typename Run>
  auto forward(Run&& run) {
    before_forward();
    auto output = std::forward<Run>(run)();
    after_forward(tensors_of(output));
    return output;
  }

  // The two halves of forward(), for an output of another type. `outputs`: the tensors that
  // the loss is computed from; looked at only with find_unused_parameters.
  void before_forward();
  void after_forward(const std::vector<torch::Tensor>& outputs);

  // While the result lives, gradients are added up locally and not sent: all but the last
  // part of a batch in pieces. What counts is where the forward runs.
  //
  //     { auto pause = reducer.no_sync(); ...forward and backward of part 1... }
  //     ...forward and backward of part 2: the sum of both is averaged
  class NoSync {
   public:
    explicit NoSync(bool& sync) : sync_(&sync), before_(std::exchange(sync, false)) {}
    ~NoSync() { *sync_ = before_; }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    bool* sync_;
    bool before_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(sync_); }

  // Sends rank 0's buffers to all ranks. A collective.
  void broadcast_buffers();

  // The size of each bucket in bytes, in the order in which they are sent.
  std::vector<std::int64_t> bucket_bytes() const;

 private:
  struct Impl;

  static std::vector<torch::Tensor> tensors_of(const torch::Tensor& output) { return {output}; }
  static std::vector<torch::Tensor> tensors_of(const std::vector<torch::Tensor>& output) {
    return output;
  }
  template <typename First, typename Second>
  static std::vector<torch::Tensor> tensors_of(const std::pair<First, Second>& output) {
    return {output.first, output.second};
  }
  template <typename... Tensors>
  static std::vector<torch::Tensor> tensors_of(const std::tuple<Tensors...>& output) {
    return std::apply([](const auto&... tensor) { return std::vector<torch::Tensor>{tensor...}; },
                      output);
  }

  bool sync_ = true;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ladder
