// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <utility>

#include "ladder/comm/process_group.h"
#include "ladder/nn/model.h"
#include "ladder/parallel/replicate_options.h"
#include "ladder/parallel/replicated_model.h"

namespace ladder {

// `sums` has no effect on this class: it is the one that replicate() makes for "exact".
using ExactDataParallelOptions = ReplicateOptions;

// A Model around a Model of which every rank has a replica, as DistributedDataParallel, whose
// weights are the same bits for every number of ranks and threads and for every backend.
//
// Each rank computes whole micro-batches, each on one thread; the gradients are added as integers,
// multiples of 2^-44, whose order makes no difference: docs/same-weights.md.
//
//     auto batches = divide_batches(dataset->size(), {.batch_size = 64, .micro_batch = 16, ...});
//     ExactDataParallel model(network, group, {.micro_batch = 16});
//     for (const Batch& batch : loader) {
//       auto scores = model.forward(batch.inputs);
//       batch.num_items().mean(loss_sum, scores, batch.targets).backward();
//       optimizer.step();
//       optimizer.zero_grad();
//     }
//
// Conditions, beside equal initial weights and samples:
//
//     - the ranks divide each batch by whole micro-batches, with this size: ShardedBatchSampler;
//     - the loss is a sum over samples, each of which depends on its own row of the output alone,
//       divided by the size of the whole batch: NumItems::mean. Gradients are added, not averaged;
//     - a gradient of one micro-batch is at most 64. Anything larger, infinite or NaN makes all
//       gradients NaN on all ranks, which a GradScaler skips and a LossGuard reports;
//     - random numbers depend on the sample: Dropout with masks by position, in a RandomScope. A
//       call of torch::dropout in a forward is not seen;
//     - the same micro-batch size and instruction set (AVX2, AVX-512). On a GPU: operations that
//       are deterministic.
//
// BatchNorm normalises by the statistics of a micro-batch; the running statistics move once per
// step by the mean over all micro-batches.
//
// A rank's part of a batch may be empty. A parameter that no micro-batch uses keeps an undefined
// gradient. A backward runs once and cannot be differentiated again.
//
// Collectives: construction, as GradientReducer's, and backward. Without gradients
// (torch::NoGradGuard) forward computes micro-batches too, so the output of an evaluation depends
// on the batch alone, and the statistics of BatchNorm stay as they are.
//
// Sources: Li et al., "EasyScale", SC 2023, for training that does not depend on the number of
// devices; Demmel and Nguyen, "Parallel Reproducible Summation", 2015; Hoffer et al., "Train
// longer, generalize better", 2017, for ghost batch normalisation. PyTorch has no counterpart.
class ExactDataParallel : public ReplicatedModel {
 public:
  // Which parameters are trained (requires_grad) is fixed here.
  //
  // Throws UsageError for a micro-batch below 1, a negative number of threads, a model with
  // SyncBatchNorm or with Dropout that draws from PyTorch's generator, and one whose parameters are
  // on several devices or in another wrapper.
  ExactDataParallel(std::shared_ptr<Model> module, ProcessGroup group,
                    ExactDataParallelOptions options = {});
  template <typename Module>
    requires(!std::convertible_to<Module, std::shared_ptr<Model>>)
  ExactDataParallel(const Module& other, ProcessGroup group, ExactDataParallelOptions options = {})
      : ExactDataParallel(refuse_module(other), std::move(group), options) {}
  ~ExactDataParallel() override;
  ExactDataParallel(const ExactDataParallel&) = delete;
  ExactDataParallel& operator=(const ExactDataParallel&) = delete;

  // Throws UsageError if requires_grad of a parameter has changed since the construction.
  torch::Tensor forward(const Inputs& inputs) override;

  // For gradient accumulation, as GradientReducer::no_sync: backwards of forwards that run while
  // the result lives keep their sums in integers, and give the parameters no gradients; the next
  // backward adds them. forget() drops such sums.
  [[nodiscard]] GradientReducer::NoSync no_sync(bool when = true) override {
    return {pauses_, when};
  }
  void forget() override;

  std::int64_t micro_batch() const override;

 private:
  class Replicas;

  std::shared_ptr<Replicas> replicas_;
  std::shared_ptr<int> pauses_ = std::make_shared<int>(0);  // NoSync in effect
};

}  // namespace ladder
