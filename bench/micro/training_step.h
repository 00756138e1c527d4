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
};

// What a stage does with one batch, without the loader and the record, over and over again.
//
// The learning rate is 0: the optimizer computes as ever, and the weights stay, so that every step
// has the same numbers to work on.
class TrainingStep {
 public:
  explicit TrainingStep(const TrainingStepOptions& options)
      : recipe_({.name = options.recipe, .lr = 0.0, .math = options.math}),
        model_(wrapped(first_model(recipe_), options)),
        optimizer_(recipe_.make_optimizer(model_->parameters())),
        batch_(random_batch(options.batch_size)) {}

  // The gradients, without the optimizer.
  void forward_and_backward() { run_backward(*model_, recipe_, batch_); }

  void run() {
    forward_and_backward();
    optimizer_->step();
  }

 private:
  static std::shared_ptr<Model> wrapped(std::shared_ptr<Model> model,
                                        const TrainingStepOptions& options) {
    model = std::make_shared<AutocastModel>(model, dtype_of(options.precision));
    if (!options.group) return model;
    return std::make_shared<DistributedDataParallel>(model, *options.group);
  }

  Recipe recipe_;
  std::shared_ptr<Model> model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  Batch batch_;
};

}  // namespace ladder
