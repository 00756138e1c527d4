// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "ladder/amp/autocast.h"
#include "ladder/amp/precision.h"
#include "ladder/comm/process_group.h"
#include "ladder/nn/model.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "mnist/recipe.h"
#include "tests/support/training.h"

namespace ladder {

struct TrainingStepOptions {
  std::string recipe = "basicnet";                   // basicnet or convnet
  std::int64_t batch_size = 64;                      // samples of this rank
  Precision precision = Precision::kFp32;            // fp32 or bf16
  Math math = Math::kFast;                           // reference = NCHW and PyTorch's dropout
  std::optional<ProcessGroup> group = std::nullopt;  // unset = no DistributedDataParallel
  GradientReducerOptions reducer = {};               // of DistributedDataParallel
};

// What a stage does with one batch, without the loader and the record, over and over again.
//
// The learning rate is 0: the optimizer computes as ever, and the weights stay, so that every step
// has the same numbers to work on.
class TrainingStep {
 public:
  explicit TrainingStep(const TrainingStepOptions& options)
      : recipe_({.name = options.recipe, .lr = 0.0, .math = options.math}),
        model_(std::make_shared<AutocastModel>(first_model(recipe_), dtype_of(options.precision))),
        ddp_(wrapped(model_, options)),
        optimizer_(recipe_.make_optimizer(model_->parameters())),
        batch_(random_batch(options.batch_size)) {}

  // The gradients, without the optimizer.
  void forward_and_backward() { run_backward(model(), recipe_, batch_); }

  void run() {
    forward_and_backward();
    optimizer_->step();
  }

  // The parts of run(), for a step of another kind.
  torch::Tensor loss() { return loss_of(model(), recipe_, batch_); }
  Model& model() { return ddp_ ? *ddp_ : *model_; }
  DistributedDataParallel* ddp() { return ddp_.get(); }  // none without a group
  torch::optim::Optimizer& optimizer() { return *optimizer_; }

 private:
  static std::shared_ptr<DistributedDataParallel> wrapped(const std::shared_ptr<Model>& model,
                                                          const TrainingStepOptions& options) {
    if (!options.group) return nullptr;
    return std::make_shared<DistributedDataParallel>(
        model, *options.group, DistributedDataParallelOptions{.reducer = options.reducer});
  }

  Recipe recipe_;
  std::shared_ptr<Model> model_;
  std::shared_ptr<DistributedDataParallel> ddp_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  Batch batch_;
};

}  // namespace ladder
