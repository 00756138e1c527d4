// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/schedules.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/core/largest_counts.h"

namespace ladder {
namespace {

// A warm-up from 0 to 1, then `factor`.
LambdaLR::Factor with_warmup(std::int64_t warmup_steps, LambdaLR::Factor factor) {
  return [warmup_steps, factor = std::move(factor)](std::int64_t step) {
    if (step >= warmup_steps) return factor(step);
    return static_cast<double>(step) / static_cast<double>(std::max<std::int64_t>(1, warmup_steps));
  };
}

// Steps after the warm-up, at least 1.
double falling_steps(const WarmupOptions& options) {
  return static_cast<double>(
      std::max<std::int64_t>(1, options.training_steps - options.warmup_steps));
}

// Position between warm-up (0) and end (1); above 1 past the end.
double progress_of(std::int64_t step, const WarmupOptions& options) {
  return static_cast<double>(step - options.warmup_steps) / falling_steps(options);
}

}  // namespace

std::unique_ptr<LrScheduler> constant_schedule(torch::optim::Optimizer& optimizer) {
  return std::make_unique<LambdaLR>(optimizer, [](std::int64_t /*step*/) { return 1.0; });
}

std::unique_ptr<LrScheduler> constant_schedule_with_warmup(torch::optim::Optimizer& optimizer,
                                                           std::int64_t warmup_steps) {
  return std::make_unique<LambdaLR>(
      optimizer, with_warmup(warmup_steps, [](std::int64_t /*step*/) { return 1.0; }));
}

std::unique_ptr<LrScheduler> linear_schedule_with_warmup(torch::optim::Optimizer& optimizer,
                                                         WarmupOptions options) {
  return std::make_unique<LambdaLR>(
      optimizer, with_warmup(options.warmup_steps, [options](std::int64_t step) {
        const auto steps_left = static_cast<double>(options.training_steps - step);
        return std::max(0.0, steps_left / falling_steps(options));
      }));
}

std::unique_ptr<LrScheduler> cosine_schedule_with_warmup(torch::optim::Optimizer& optimizer,
                                                         WarmupOptions options, double num_cycles) {
  const auto factor = [options, num_cycles](std::int64_t step) {
    const double angle = std::numbers::pi * num_cycles * 2.0 * progress_of(step, options);
    return std::max(0.0, 0.5 * (1.0 + std::cos(angle)));
  };
  return std::make_unique<LambdaLR>(optimizer, with_warmup(options.warmup_steps, factor));
}

std::unique_ptr<LrScheduler> cosine_with_hard_restarts_schedule_with_warmup(
    torch::optim::Optimizer& optimizer, WarmupOptions options, double num_cycles) {
  if (!(num_cycles > 0.0)) {
    throw UsageError::out_of_range("cosine with restarts num_cycles", num_cycles, "a number > 0",
                                   "1 falls once, 3 begins twice again");
  }
  const auto factor = [options, num_cycles](std::int64_t step) {
    const double progress = progress_of(step, options);
    if (progress >= 1.0) return 0.0;
    const double angle = std::numbers::pi * std::fmod(num_cycles * progress, 1.0);
    return std::max(0.0, 0.5 * (1.0 + std::cos(angle)));
  };
  return std::make_unique<LambdaLR>(optimizer, with_warmup(options.warmup_steps, factor));
}

std::unique_ptr<LrScheduler> polynomial_decay_schedule_with_warmup(
    torch::optim::Optimizer& optimizer, WarmupOptions options, PolynomialDecayOptions decay) {
  const double lr_init = optimizer.defaults().get_lr();
  if (!(decay.lr_end < lr_init)) {
    throw UsageError::out_of_range("polynomial decay lr_end", decay.lr_end,
                                   "a value below the learning rate",
                                   "raise the learning rate, or lower lr_end");
  }
  if (!(decay.power >= 0.0)) {
    throw UsageError::out_of_range("polynomial decay power", decay.power, "a value >= 0",
                                   "1 is a straight line");
  }
  const auto factor = [options, decay, lr_init](std::int64_t step) {
    const bool has_fall = options.warmup_steps < options.training_steps;
    if (!has_fall || step > options.training_steps) return decay.lr_end / lr_init;
    const double left = 1.0 - progress_of(step, options);
    return ((lr_init - decay.lr_end) * std::pow(left, decay.power) + decay.lr_end) / lr_init;
  };
  return std::make_unique<LambdaLR>(optimizer, with_warmup(options.warmup_steps, factor));
}

std::unique_ptr<LrScheduler> inverse_sqrt_schedule(torch::optim::Optimizer& optimizer,
                                                   std::int64_t warmup_steps,
                                                   std::optional<std::int64_t> timescale) {
  constexpr std::int64_t kWithoutWarmup = 10'000;
  const auto scale = timescale.value_or(warmup_steps != 0 ? warmup_steps : kWithoutWarmup);
  require_between("inverse sqrt timescale", scale, 1, kMaxOptimizerSteps,
                  "unset is the number of warm-up steps");
  const auto factor = [warmup_steps, scale](std::int64_t step) {
    const auto shifted = static_cast<double>(step + (scale - warmup_steps));
    return 1.0 / std::sqrt(shifted / static_cast<double>(scale));
  };
  return std::make_unique<LambdaLR>(optimizer, with_warmup(warmup_steps, factor));
}

}  // namespace ladder
