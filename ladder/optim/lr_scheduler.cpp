// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/lr_scheduler.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "ladder/core/error.h"

namespace ladder {
namespace {

double warmup_factor(std::int64_t step, const WarmupOptions& options) {
  return static_cast<double>(step) /
         static_cast<double>(std::max<std::int64_t>(1, options.warmup_steps));
}

// Steps of the falling part, at least 1.
double falling_steps(const WarmupOptions& options) {
  return static_cast<double>(
      std::max<std::int64_t>(1, options.training_steps - options.warmup_steps));
}

}  // namespace

LrScheduler::LrScheduler(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {
  base_lrs_ = last_lr();
}

void LrScheduler::step() {
  ++last_epoch_;
  apply();
}

std::vector<double> LrScheduler::last_lr() const {
  std::vector<double> rates;
  for (const auto& group : optimizer_.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

void LrScheduler::apply() {
  auto& groups = optimizer_.param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    auto& options = groups[i].options();
    options.set_lr(next_lr(base_lrs_.at(i), options.get_lr()));
  }
}

StepLR::StepLR(torch::optim::Optimizer& optimizer, StepLrOptions options)
    : LrScheduler(optimizer), options_(options) {
  if (options.step_size <= 0) {
    throw UsageError::out_of_range("StepLR step_size", options.step_size, "a number > 0");
  }
}

double StepLR::next_lr(double /*base_lr*/, double present_lr) const {
  const bool drops = last_epoch() != 0 && last_epoch() % options_.step_size == 0;
  return drops ? present_lr * options_.gamma : present_lr;
}

LambdaLR::LambdaLR(torch::optim::Optimizer& optimizer, Factor factor)
    : LrScheduler(optimizer), factor_(std::move(factor)) {
  apply();
}

double LambdaLR::next_lr(double base_lr, double /*present_lr*/) const {
  return base_lr * factor_(last_epoch());
}

std::unique_ptr<LrScheduler> constant_schedule(torch::optim::Optimizer& optimizer) {
  return std::make_unique<LambdaLR>(optimizer, [](std::int64_t /*step*/) { return 1.0; });
}

std::unique_ptr<LrScheduler> linear_schedule_with_warmup(torch::optim::Optimizer& optimizer,
                                                         WarmupOptions options) {
  return std::make_unique<LambdaLR>(optimizer, [options](std::int64_t step) {
    if (step < options.warmup_steps) return warmup_factor(step, options);
    return std::max(0.0,
                    static_cast<double>(options.training_steps - step) / falling_steps(options));
  });
}

std::unique_ptr<LrScheduler> cosine_schedule_with_warmup(torch::optim::Optimizer& optimizer,
                                                         WarmupOptions options) {
  return std::make_unique<LambdaLR>(optimizer, [options](std::int64_t step) {
    if (step < options.warmup_steps) return warmup_factor(step, options);
    const double progress =
        static_cast<double>(step - options.warmup_steps) / falling_steps(options);
    return std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * 0.5 * 2.0 * progress)));
  });
}

}  // namespace ladder
