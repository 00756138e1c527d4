// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/lr_scheduler.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/core/largest_counts.h"
#include "ladder/io/json.h"

namespace ladder {
namespace {

constexpr const char* kLastEpoch = "last_epoch";
constexpr const char* kBaseLrs = "base_lrs";
constexpr const char* kLastLr = "last_lr";

}  // namespace

LrScheduler::LrScheduler(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {
  base_lrs_ = last_lr();
}

void LrScheduler::step() {
  settle();
  ++last_epoch_;
  apply();
}

void LrScheduler::step_if(std::function<bool()> condition) {
  pending_ = [this, earlier = std::move(pending_), condition = std::move(condition)] {
    if (earlier) earlier();
    if (condition()) step();
  };
}

void LrScheduler::settle() const {
  if (const auto steps = std::exchange(pending_, nullptr)) steps();
}

std::int64_t LrScheduler::last_epoch() const {
  settle();
  return last_epoch_;
}

std::vector<double> LrScheduler::last_lr() const {
  settle();
  std::vector<double> rates;
  for (const auto& group : optimizer_.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

nlohmann::json LrScheduler::state_dict() const {
  settle();
  auto state = own_state();
  state[kLastEpoch] = last_epoch_;
  state[kBaseLrs] = base_lrs_;
  state[kLastLr] = last_lr();
  return state;
}

std::function<void()> LrScheduler::plan_load(const nlohmann::json& state, std::string_view origin) {
  const JsonReader saved(state,
                         json_data_error(origin, "it must come from LrScheduler::state_dict"));
  std::vector<std::string> names = {kLastEpoch, kBaseLrs, kLastLr};
  const auto own = own_state();
  for (const auto& item : own.items()) names.push_back(item.key());
  saved.expect_only(names);
  const auto last_epoch = saved.count(kLastEpoch, kMaxOptimizerSteps);
  auto base_lrs = saved.numbers(kBaseLrs, base_lrs_.size());
  const auto last_lr = saved.numbers(kLastLr, base_lrs_.size());
  for (const auto& [name, rates] : {std::pair(kBaseLrs, base_lrs), std::pair(kLastLr, last_lr)}) {
    const auto is_negative = [](double rate) { return rate < 0.0; };
    if (std::ranges::any_of(rates, is_negative)) saved.refuse_value("learning rates >= 0", name);
  }
  auto apply_own = plan_own(saved);
  return [this, last_epoch, base_lrs = std::move(base_lrs), apply_own = std::move(apply_own)] {
    pending_ = nullptr;
    last_epoch_ = last_epoch;
    base_lrs_ = base_lrs;
    apply_own();
  };
}

nlohmann::json LrScheduler::own_state() const { return nlohmann::json::object(); }

std::function<void()> LrScheduler::plan_own(const JsonReader& /*saved*/) {
  return [] {};
}

void LrScheduler::load_state_dict(const nlohmann::json& state, std::string_view origin) {
  plan_load(state, origin)();
}

void LrScheduler::apply() {
  auto& groups = optimizer_.param_groups();
  if (groups.size() != base_lrs_.size()) {
    throw UsageError::conflict("LrScheduler",
                               fmt::format("made for {} parameter groups, the optimizer has {}",
                                           base_lrs_.size(), groups.size()),
                               "add all groups first, then make the schedule");
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    auto& options = groups[i].options();
    options.set_lr(next_lr(base_lrs_[i], options.get_lr()));
  }
}

StepLR::StepLR(torch::optim::Optimizer& optimizer, StepLrOptions options)
    : LrScheduler(optimizer), options_(options) {
  if (options.step_size <= 0) {
    throw UsageError::out_of_range("StepLR step_size", options.step_size, "a number > 0",
                                   fmt::format("the default is {}", StepLrOptions{}.step_size));
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

}  // namespace ladder
