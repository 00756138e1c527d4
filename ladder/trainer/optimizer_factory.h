// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>

#include "ladder/optim/lr_scheduler.h"
#include "ladder/trainer/training_arguments.h"

namespace ladder {

// What a Trainer makes of its arguments when it is given no optimizer and no scheduler.

// The optimizer that `optim` names, over the parameters of `model` that want a gradient, in the
// model's order, in two groups: [0] has the weight decay, [1] has none. A decay pulls weights to 0,
// which says nothing for a bias or for the scale of a normalisation layer, so that these are in
// [1]. They are known by their names, as in transformers, upper and lower case alike: those that
// hold bias, layernorm or rmsnorm, or have a part that is norm or ends in _norm; and the parameters
// of a torch::nn::LayerNorm. The scale of a BatchNorm is none of these: the `1.weight` of a
// Sequential decays. A group can be empty.
//
// Only the Adams take further arguments, adam_beta1, adam_beta2 and adam_epsilon; the others have
// their own defaults. The kernels are the fused ones where there are any.
//
// Throws UsageError when an argument is out of its range.
// Python's counterpart: transformers.Trainer.create_optimizer.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const TrainingArguments& arguments,
                                                        const torch::nn::Module& model);

// How many of `training_steps` the learning rate rises: warmup_steps, below 1 a part of all steps,
// rounded up. warmup_ratio counts while warmup_steps is 0.
// Python's counterpart: transformers.TrainingArguments.get_warmup_steps.
std::int64_t warmup_steps_of(const TrainingArguments& arguments, std::int64_t training_steps);

// The schedule that `lr_scheduler_type` names, for a run of `training_steps` optimizer steps, with
// the numbers of lr_scheduler_kwargs:
//
//     cosine                num_cycles
//     cosine_with_restarts  num_cycles
//     polynomial            lr_end, power
//     inverse_sqrt          timescale
//     reduce_lr_on_plateau  mode, factor, patience, threshold, threshold_mode, cooldown, min_lr,
//     eps
//
// The last is a ReduceLROnPlateau: step it with the metric of each evaluation. The optimizer must
// outlive the schedule.
//
// Throws UsageError when lr_scheduler_kwargs is no JSON object, holds another name or a value that
// the schedule cannot take. Python's counterpart: transformers.get_scheduler, which lets the
// constant schedules pass over names that they do not know.
std::unique_ptr<LrScheduler> make_scheduler(const TrainingArguments& arguments,
                                            torch::optim::Optimizer& optimizer,
                                            std::int64_t training_steps);

}  // namespace ladder
