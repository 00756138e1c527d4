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
// Most begin with a warm-up: the first steps, whose gradients come from weights that know nothing,
// are small ones. They multiply the rate that the optimizer was made with. Past the end of training
// they can still be asked. All throw UsageError when an option is out of its range.

struct WarmupOptions {
  std::int64_t warmup_steps = 0;    // rising in a straight line from 0 to the rate it was made with
  std::int64_t training_steps = 0;  // warm-up included
};

// Always the same rate. Python: transformers.get_constant_schedule.
std::unique_ptr<LrScheduler> constant_schedule(torch::optim::Optimizer& optimizer);

// Up, then always the same. Python: transformers.get_constant_schedule_with_warmup.
std::unique_ptr<LrScheduler> constant_schedule_with_warmup(torch::optim::Optimizer& optimizer,
                                                           std::int64_t warmup_steps);

// Up, then down to 0 in a straight line, and 0 past the end.
// Python: transformers.get_linear_schedule_with_warmup.
std::unique_ptr<LrScheduler> linear_schedule_with_warmup(torch::optim::Optimizer& optimizer,
                                                         WarmupOptions options);

// Up, then along a cosine of `num_cycles` waves: half a wave is from the top down to 0. Past the
// end the wave goes on. Python: transformers.get_cosine_schedule_with_warmup.
std::unique_ptr<LrScheduler> cosine_schedule_with_warmup(torch::optim::Optimizer& optimizer,
                                                         WarmupOptions options,
                                                         double num_cycles = 0.5);

// Up, then `num_cycles` > 0 times down along half a cosine, each time from the top, and 0 past the
// end. Python: transformers.get_cosine_with_hard_restarts_schedule_with_warmup.
std::unique_ptr<LrScheduler> cosine_with_hard_restarts_schedule_with_warmup(
    torch::optim::Optimizer& optimizer, WarmupOptions options, double num_cycles = 1.0);

struct PolynomialDecayOptions {
  double lr_end = 1e-7;  // where the rate ends; below the rate the optimizer was made with
  double power = 1.0;    // 1 = a straight line, 2 = a parabola that ends flat; >= 0
};

// Up, then down along a polynomial to `lr_end`, and `lr_end` past the end. What part of the first
// rate that is, says the rate that the optimizer was made with, not one from a saved state; groups
// with a rate of their own keep their proportion to it. A schedule that is all warm-up is at
// `lr_end` after it, where Python divides by zero.
// Python: transformers.get_polynomial_decay_schedule_with_warmup.
std::unique_ptr<LrScheduler> polynomial_decay_schedule_with_warmup(
    torch::optim::Optimizer& optimizer, WarmupOptions options, PolynomialDecayOptions decay = {});

// Up, then down as 1 / sqrt(step), without an end: the rate has halved 3 * `timescale` steps after
// the warm-up. `timescale` > 0; unset = warmup_steps, or 10000 without a warm-up.
// Python: transformers.get_inverse_sqrt_schedule.
std::unique_ptr<LrScheduler> inverse_sqrt_schedule(torch::optim::Optimizer& optimizer,
                                                   std::int64_t warmup_steps,
                                                   std::optional<std::int64_t> timescale = {});

}  // namespace ladder
