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
  bool broadcast_buffers = true;         // send rank 0's to all before a training forward
  std::optional<double> bucket_cap_mb;   // MiB per bucket; unset = 25, and 1 for the first
  bool find_unused_parameters = false;   // allow a forward without some parameters; slower
  bool gradient_as_bucket_view = false;  // gradients are views of the buckets; see below
  std::optional<CommHook> comm_hook;     // unset = average in the gradients' own precision
  std::int64_t check_replicas = 0;       // compare the parameters every N-th forward; 0 = never
};

// Averages the gradients of a module over all ranks, while backward is still computing them.
//
// The engine is c10d::Reducer, as in Python's DistributedDataParallel. It divides the parameters
// into buckets; when backward has filled a bucket, its all-reduce starts, and backward continues
// with the layers below. Equal optimizers then take equal steps, so the replicas stay equal. After
// the first step the buckets are rebuilt in the order in which the gradients became ready.
//
// For a Model use DistributedDataParallel, which wraps this class. This class serves any module
// with any forward:
//
//     GradientReducer reducer(module, group);
//     auto score = reducer.forward([&] { return module.forward(image, text); });
//     loss(score).backward();  // gradients are averaged now
//
// Collectives: construction, which checks that all ranks built the same module (see
// replica_check.h) and sends rank 0's parameters and buffers to all; in training also forward
// (buffers) and backward (gradients). Construct it when the module is on its device, before the
// optimizer's first step. The module must outlive it.
//
// A training forward throws UsageError for a parameter whose requires_grad or strides have changed
// since: its gradient would stay local, or be averaged with other elements. (One may be frozen with
// find_unused_parameters.)
//
// Backward throws if its forward did not go through forward(), so that nothing would be averaged,
// and for parameters without a gradient, which it names, unless find_unused_parameters is set.
//
// If a rank is lost, loss.backward() throws: in shared memory a DistributedError, else an error of
// Gloo or NCCL, which call_and_report (launch/exit_status.h) recognises.
//
// A rank alone exchanges nothing: without a comm_hook and gradient_as_bucket_view, its gradients
// are not copied to the buckets and back.
//
// With gradient_as_bucket_view, reset the gradients with module.zero_grad() or an
// AcceleratedOptimizer: LibTorch's Optimizer::zero_grad detaches them, which a view does not allow.
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

  // `run` calls the module and returns its output: a tensor, or a vector, tuple or pair of tensors.
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

  // For gradient accumulation: gradients of a forward that runs while the result lives are added up
  // locally and not sent.
  //
  //     { auto pause = reducer.no_sync(); ...forward and backward of micro-batch 1... }
  //     ...forward and backward of micro-batch 2: the sum of both is averaged
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
