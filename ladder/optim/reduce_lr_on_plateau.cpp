// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/reduce_lr_on_plateau.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "ladder/core/error.h"
#include "ladder/io/json.h"

namespace ladder {
namespace {

constexpr const char* kBest = "best";
constexpr const char* kNumBadEpochs = "num_bad_epochs";
constexpr const char* kCooldownCounter = "cooldown_counter";

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

ReduceLROnPlateau::ReduceLROnPlateau(torch::optim::Optimizer& optimizer, PlateauOptions options)
    : LrScheduler(optimizer),
      options_(options),
      best_(options.mode == PlateauMode::kMin ? kInfinity : -kInfinity) {
  const bool shrinks = options.factor >= 0.0 && options.factor < 1.0;
  if (!shrinks) {
    throw UsageError::out_of_range("ReduceLROnPlateau factor", options.factor, "0 <= factor < 1",
                                   fmt::format("the default is {}", PlateauOptions{}.factor));
  }
  require_at_least("ReduceLROnPlateau patience", options.patience, 0,
                   fmt::format("the default is {}", PlateauOptions{}.patience));
  require_at_least("ReduceLROnPlateau cooldown", options.cooldown, 0,
                   fmt::format("the default is {}", PlateauOptions{}.cooldown));
}

bool ReduceLROnPlateau::is_better(double metric) const {
  const double threshold = options_.threshold;
  const bool relative = options_.threshold_mode == ThresholdMode::kRel;
  if (options_.mode == PlateauMode::kMin) {
    return metric < (relative ? best_ * (1.0 - threshold) : best_ - threshold);
  }
  return metric > (relative ? best_ * (threshold + 1.0) : best_ + threshold);
}

void ReduceLROnPlateau::step(double metric) {
  if (is_better(metric)) {
    best_ = metric;
    num_bad_epochs_ = 0;
  } else {
    ++num_bad_epochs_;
  }
  if (cooldown_counter_ > 0) {
    --cooldown_counter_;
    num_bad_epochs_ = 0;
  }
  drops_ = num_bad_epochs_ > options_.patience;
  LrScheduler::step();
  if (!drops_) return;
  cooldown_counter_ = options_.cooldown;
  num_bad_epochs_ = 0;
}

void ReduceLROnPlateau::step() {
  throw UsageError::missing(
      "ReduceLROnPlateau::step", "a metric",
      "call step(metric) after each evaluation, not after each step; of a prepared "
      "schedule, call it on the object that was prepared");
}

double ReduceLROnPlateau::next_lr(double /*base_lr*/, double present_lr) const {
  if (!drops_) return present_lr;
  const double lower = std::max(present_lr * options_.factor, options_.min_lr);
  return present_lr - lower > options_.eps ? lower : present_lr;
}

// JSON has no infinity: best_ is a text before the first metric.
nlohmann::json ReduceLROnPlateau::own_state() const {
  const auto infinity = best_ > 0.0 ? "inf" : "-inf";
  return {{kBest, std::isinf(best_) ? nlohmann::json(infinity) : nlohmann::json(best_)},
          {kNumBadEpochs, num_bad_epochs_},
          {kCooldownCounter, cooldown_counter_}};
}

std::function<void()> ReduceLROnPlateau::plan_own(const JsonReader& saved) {
  const auto& text = saved.value(kBest);
  const double best = text == "inf" ? kInfinity : text == "-inf" ? -kInfinity : saved.number(kBest);
  const auto num_bad_epochs = saved.count(kNumBadEpochs);
  const auto cooldown_counter = saved.count(kCooldownCounter);
  return [this, best, num_bad_epochs, cooldown_counter] {
    best_ = best;
    num_bad_epochs_ = num_bad_epochs;
    cooldown_counter_ = cooldown_counter;
  };
}

}  // namespace ladder
