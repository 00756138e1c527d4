// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ladder/nn/model.h"
#include "ladder/optim/adagrad.h"
#include "ladder/optim/adam.h"
#include "ladder/optim/fused_optimizer.h"
#include "ladder/optim/lr_scheduler.h"
#include "ladder/optim/rmsprop.h"
#include "ladder/optim/schedules.h"
#include "ladder/optim/sgd.h"

namespace ladder {

using OptimizerPointer = std::unique_ptr<FusedOptimizer>;
using SchedulerPointer = std::unique_ptr<LrScheduler>;

constexpr int kRunSteps = 10;  // of a run

// Optimizers with schedules, for tests of runs that stop and go on.
struct Way {
  std::function<OptimizerPointer(const Model&)> optimizer;
  std::function<SchedulerPointer(FusedOptimizer&)> scheduler;
};

template <typename Optimizer, typename Options>
auto one_group(const Options& options) {
  return [options](const Model& model) -> OptimizerPointer {
    return std::make_unique<Optimizer>(model.parameters(), options);
  };
}

// Weights and biases in groups of their own, the biases at half the rate and without weight decay.
template <typename Optimizer, typename Options>
auto two_groups(const Options& options) {
  return [options](const Model& model) -> OptimizerPointer {
    std::vector<torch::Tensor> weights;
    std::vector<torch::Tensor> biases;
    for (const auto& item : model.named_parameters()) {
      (item.key().ends_with("bias") ? biases : weights).push_back(item.value());
    }
    auto optimizer = std::make_unique<Optimizer>(weights, options);
    auto other = options;
    other.lr /= 2.0;
    other.weight_decay = 0.0;
    optimizer->add_param_group(parameter_group(biases, other));
    return optimizer;
  };
}

// The same as WAYS in tests/interop/optimizer_test.py.
inline std::map<std::string, Way> ways() {
  const auto step_lr = [](FusedOptimizer& optimizer) -> SchedulerPointer {
    return std::make_unique<StepLR>(optimizer, StepLrOptions{.step_size = 3, .gamma = 0.3});
  };
  const auto linear = [](FusedOptimizer& optimizer) {
    return linear_schedule_with_warmup(optimizer, {2, kRunSteps});
  };
  const AdamWOptions adamw{
      .lr = 0.01, .beta1 = 0.8, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.05};
  const AdagradOptions adagrad{
      .lr = 0.1, .lr_decay = 0.1, .weight_decay = 0.1, .initial_accumulator_value = 0.5};
  const RMSpropOptions rmsprop_all{
      .lr = 0.01, .weight_decay = 0.1, .momentum = 0.9, .centered = true};
  const SgdOptions momentum{.lr = 0.1, .momentum = 0.9, .dampening = 0.1, .weight_decay = 0.01};
  const SgdOptions nesterov{.lr = 0.1, .momentum = 0.9, .nesterov = true};
  return {{"adamw", {one_group<AdamW>(adamw), linear}},
          {"adamw_groups", {two_groups<AdamW>(AdamWOptions{.lr = 0.02}), step_lr}},
          {"adam", {two_groups<Adam>(AdamOptions{.lr = 0.02, .weight_decay = 0.1}), linear}},
          {"adagrad", {two_groups<Adagrad>(adagrad), step_lr}},
          {"rmsprop", {one_group<RMSprop>(RMSpropOptions{.lr = 0.01}), step_lr}},
          {"rmsprop_all", {one_group<RMSprop>(rmsprop_all), linear}},
          {"sgd", {one_group<SGD>(SgdOptions{.lr = 0.1}), step_lr}},
          {"momentum", {one_group<SGD>(momentum), step_lr}},
          {"nesterov", {one_group<SGD>(nesterov), linear}}};
}

}  // namespace ladder
