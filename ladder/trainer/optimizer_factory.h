// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>

#include "ladder/optim/lr_scheduler.h"
#include "ladder/trainer/training_arguments.h"

namespace ladder {

// The optimizer and schedule that a Trainer makes from its arguments.

// The optimizer that `optim` names, over the parameters of `model` that require a gradient, in the
// model's order, in two groups, which can be empty: [0] with weight decay, [1] without. As in
// transformers, [1] has the parameters of a torch::nn::LayerNorm, and those whose names, in any
// case, contain bias, layernorm or rmsnorm, or have a part that is norm or ends in _norm. The scale
// of a BatchNorm is not recognised: the `1.weight` of a Sequential decays.
//
// adam_beta1, adam_beta2 and adam_epsilon apply to Adam and AdamW only; the other optimizers keep
// their own defaults. Fused kernels are used where they exist.
//
// Throws UsageError when an argument is out of its range.
// Python's counterpart: transformers.Trainer.create_optimizer.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const TrainingArguments& arguments,
                                                        const torch::nn::Module& model);

// The number of steps of rising learning rate: warmup_steps, below 1 a fraction of
// `training_steps`, rounded up. warmup_ratio counts while warmup_steps is 0.
// Python's counterpart: transformers.TrainingArguments.get_warmup_steps.
std::int64_t warmup_steps_of(const TrainingArguments& arguments, std::int64_t training_steps);

// The schedule that `lr_scheduler_type` names, for a run of `training_steps` optimizer steps, with
// the settings in lr_scheduler_kwargs:
//
//     cosine, cosine_with_restarts   num_cycles
//     polynomial                     lr_end, power
//     inverse_sqrt                   timescale
//     reduce_lr_on_plateau           mode, factor, patience, threshold, threshold_mode, cooldown,
//                                    min_lr, eps
//
// The last is a ReduceLROnPlateau: step it with the metric of each evaluation. The optimizer must
// outlive the schedule.
//
// Throws UsageError when lr_scheduler_kwargs is not a JSON object, or has another name or a value
// out of range. Python's counterpart: transformers.get_scheduler, where the constant schedules
// ignore unknown names.
std::unique_ptr<LrScheduler> make_scheduler(const TrainingArguments& arguments,
                                            torch::optim::Optimizer& optimizer,
                                            std::int64_t training_steps);

}  // namespace ladder
