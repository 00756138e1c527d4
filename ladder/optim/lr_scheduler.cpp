// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/lr_scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>
#include <utility>

#include "ladder/checkpoint/quoted.h"
#include "ladder/core/error.h"

namespace ladder {
namespace {

constexpr const char* kLastEpoch = "last_epoch";
constexpr const char* kBaseLrs = "base_lrs";
constexpr const char* kLastLr = "last_lr";

double warmup_factor(std::int64_t step, const WarmupOptions& options) {
  return static_cast<double>(step) /
         static_cast<double>(std::max<std::int64_t>(1, options.warmup_steps));
}

// Steps of the falling part, at least 1.
double falling_steps(const WarmupOptions& options) {
  return static_cast<double>(
      std::max<std::int64_t>(1, options.training_steps - options.warmup_steps));
}

// The parts of a scheduler's state, as far as they have the form that they should.
class SavedSchedule {
 public:
  SavedSchedule(const nlohmann::json& state, std::string_view origin)
      : state_(state), origin_(origin) {
    if (!state.is_object()) refuse("an object", text_of(state));
    for (const auto& [name, value] : state.items()) {
      const bool known = name == kLastEpoch || name == kBaseLrs || name == kLastLr;
      if (known) continue;
      refuse(fmt::format("only {}, {} and {}", kLastEpoch, kBaseLrs, kLastLr), in_quotes(name));
    }
  }

  std::int64_t last_epoch() const {
    const auto& value = at(kLastEpoch);
    const auto count = value.is_number_integer() ? value.get<std::int64_t>() : -1;
    if (count < 0 || count == std::numeric_limits<std::int64_t>::max()) {
      refuse(fmt::format("a count as {}", kLastEpoch), text_of(value));
    }
    return count;
  }

  std::vector<double> rates(const char* name, std::size_t groups) const {
    const auto& values = at(name);
    const auto valid = [](const nlohmann::json& value) {
      return value.is_number() && std::isfinite(value.get<double>());
    };
    if (!values.is_array() || values.size() != groups ||
        !std::all_of(values.begin(), values.end(), valid)) {
      refuse(fmt::format("{} numbers, one a parameter group, as {}", groups, name),
             text_of(values));
    }
    return values.get<std::vector<double>>();
  }

 private:
  const nlohmann::json& at(const char* name) const {
    const auto found = state_.find(name);
    if (found == state_.end()) refuse(name, "none");
    return *found;
  }

  static std::string text_of(const nlohmann::json& value) {
    return in_quotes(value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
  }

  [[noreturn]] void refuse(const std::string& expected, const std::string& got) const {
    throw DataError::mismatch(origin_, expected, got, "it must come from LrScheduler::state_dict");
  }

  const nlohmann::json& state_;
  std::string_view origin_;
};

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

nlohmann::json LrScheduler::state_dict() const {
  return {{kLastEpoch, last_epoch_}, {kBaseLrs, base_lrs_}, {kLastLr, last_lr()}};
}

std::function<void()> LrScheduler::plan_load(const nlohmann::json& state, std::string_view origin) {
  const SavedSchedule saved(state, origin);
  const auto last_epoch = saved.last_epoch();
  auto base_lrs = saved.rates(kBaseLrs, base_lrs_.size());
  saved.rates(kLastLr, base_lrs_.size());
  return [this, last_epoch, base_lrs = std::move(base_lrs)] {
    last_epoch_ = last_epoch;
    base_lrs_ = base_lrs;
  };
}

void LrScheduler::load_state_dict(const nlohmann::json& state, std::string_view origin) {
  plan_load(state, origin)();
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
