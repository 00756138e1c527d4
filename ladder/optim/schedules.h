// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "ladder/optim/lr_scheduler.h"

namespace ladder {

// The schedules of transformers.optimization. A step is an optimizer step.
//
// Most begin with a warm-up: small first steps, because the first gradients come from untrained
// weights. They multiply the initial rate of the optimizer, and are defined past the end of
// training too. All throw UsageError when an option is out of its range; numbers of steps are not
// checked.

struct WarmupOptions {
  std::int64_t warmup_steps = 0;    // linear from 0 to the initial rate
  std::int64_t training_steps = 0;  // warm-up included
};

// A constant rate. Python: transformers.get_constant_schedule.
std::unique_ptr<LrScheduler> constant_schedule(torch::optim::Optimizer& optimizer);

// Warm-up, then constant. Python: transformers.get_constant_schedule_with_warmup.
std::unique_ptr<LrScheduler> constant_schedule_with_warmup(torch::optim::Optimizer& optimizer,
                                                           std::int64_t warmup_steps);

// Warm-up, then linear to 0, and 0 past the end.
// Python: transformers.get_linear_schedule_with_warmup.
std::unique_ptr<LrScheduler> linear_schedule_with_warmup(torch::optim::Optimizer& optimizer,
                                                         WarmupOptions options);

// Warm-up, then a cosine of `num_cycles` waves: half a wave falls from the top to 0. The wave
// continues past the end. Python: transformers.get_cosine_schedule_with_warmup.
std::unique_ptr<LrScheduler> cosine_schedule_with_warmup(torch::optim::Optimizer& optimizer,
                                                         WarmupOptions options,
                                                         double num_cycles = 0.5);

// Warm-up, then `num_cycles` > 0 times half a cosine from the top to 0, and 0 past the end.
// Python: transformers.get_cosine_with_hard_restarts_schedule_with_warmup.
std::unique_ptr<LrScheduler> cosine_with_hard_restarts_schedule_with_warmup(
    torch::optim::Optimizer& optimizer, WarmupOptions options, double num_cycles = 1.0);

struct PolynomialDecayOptions {
  double lr_end = 1e-7;  // the last rate; below the initial rate of the optimizer
  double power = 1.0;    // 1 = linear, 2 = a parabola that ends flat; >= 0
};

// Warm-up, then a polynomial down to `lr_end`, and `lr_end` past the end. The factor of a step
// follows from the rate that the optimizer was constructed with, not from a saved state; groups
// with a rate of their own keep their proportion to it. A schedule that is all warm-up is at
// `lr_end` after it, where Python divides by zero.
// Python: transformers.get_polynomial_decay_schedule_with_warmup.
std::unique_ptr<LrScheduler> polynomial_decay_schedule_with_warmup(
    torch::optim::Optimizer& optimizer, WarmupOptions options, PolynomialDecayOptions decay = {});

// Warm-up, then 1 / sqrt(step), without an end: the rate has halved 3 * `timescale` steps after
// the warm-up. `timescale` > 0; unset = warmup_steps, or 10000 without a warm-up.
// Python: transformers.get_inverse_sqrt_schedule.
std::unique_ptr<LrScheduler> inverse_sqrt_schedule(torch::optim::Optimizer& optimizer,
                                                   std::int64_t warmup_steps,
                                                   std::optional<std::int64_t> timescale = {});

}  // namespace ladder
