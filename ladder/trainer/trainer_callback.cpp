// SPDX-License-Identifier: Apache-2.0
#include "ladder/trainer/trainer_callback.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/io/json.h"

namespace ladder {
namespace {

std::string names_of(const Metrics& metrics) {
  std::vector<std::string> names;
  for (const auto& [name, value] : metrics) names.push_back(name);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

void CallbackHandler::add(std::shared_ptr<TrainerCallback> callback) {
  if (callback == nullptr) {
    throw UsageError::missing("callbacks", "a callback", "the pointer is null: create it first");
  }
  callbacks_.push_back(std::move(callback));
}

std::shared_ptr<TrainerCallback> CallbackHandler::pop(
    const std::function<bool(const TrainerCallback&)>& matches) {
  const auto found = std::find_if(callbacks_.begin(), callbacks_.end(),
                                  [&](const auto& callback) { return matches(*callback); });
  if (found == callbacks_.end()) return nullptr;
  auto callback = *found;
  callbacks_.erase(found);
  return callback;
}

void CallbackHandler::call(TrainerEventHandler handler, TrainerEvent& event) const {
  const auto present = callbacks_;
  for (const auto& callback : present) (*callback.*handler)(event);
}

std::map<std::string, nlohmann::json> CallbackHandler::state_dicts() const {
  std::map<std::string, nlohmann::json> states;
  for (const auto& callback : callbacks_) {
    const auto name = callback->state_name();
    if (name.empty()) continue;
    auto& state = states[name];
    if (state.is_null()) {
      state = callback->state_dict();
      continue;
    }
    if (!state.is_array()) state = nlohmann::json::array({state});
    state.push_back(callback->state_dict());
  }
  return states;
}

void CallbackHandler::load_state_dicts(const std::map<std::string, nlohmann::json>& states,
                                       std::string_view origin, const Log& log) const {
  std::map<std::string, std::size_t> taken;
  for (const auto& callback : callbacks_) {
    const auto name = callback->state_name();
    const auto found = states.find(name);
    if (name.empty() || found == states.end()) continue;
    const auto& saved = found->second;
    const std::size_t number = taken[name]++;
    if (!saved.is_array()) {
      callback->load_state_dict(saved, origin);
    } else if (number < saved.size()) {
      callback->load_state_dict(saved[number], origin);
    }
  }
  for (const auto& [name, state] : states) {
    if (name == "TrainerControl" || taken.contains(name)) continue;
    log.warn(
        fmt::format("{}: state of {} ignored: this training has no such callback", origin, name));
  }
}

void DefaultFlowCallback::on_step_end(TrainerEvent& event) {
  const auto& args = event.args;
  const auto& state = event.state;
  auto& control = event.control;
  const std::int64_t step = state.global_step;
  const bool evaluates = args.eval_strategy == IntervalStrategy::kSteps &&
                         static_cast<double>(step) >= args.eval_delay;
  const bool saves = args.save_strategy == SaveStrategy::kSteps;
  const bool logs = args.logging_strategy == IntervalStrategy::kSteps;
  if (step == 1 && args.logging_first_step) control.should_log = true;
  if (logs && is_due(step, state.logging_steps)) control.should_log = true;
  if (evaluates && is_due(step, state.eval_steps)) control.should_evaluate = true;
  if (saves && is_due(step, state.save_steps)) control.should_save = true;
  if (step < state.max_steps) return;
  control.should_training_stop = true;
  if (evaluates) control.should_evaluate = true;
  if (saves) control.should_save = true;
}

void DefaultFlowCallback::on_epoch_end(TrainerEvent& event) {
  const auto& args = event.args;
  if (args.logging_strategy == IntervalStrategy::kEpoch) event.control.should_log = true;
  if (args.eval_strategy == IntervalStrategy::kEpoch && event.state.epoch >= args.eval_delay) {
    event.control.should_evaluate = true;
  }
  if (args.save_strategy == SaveStrategy::kEpoch) event.control.should_save = true;
}

void EarlyStoppingCallback::on_train_begin(TrainerEvent& event) {
  const auto& args = event.args;
  if (args.metric_for_best_model.empty()) {
    throw UsageError::missing("EarlyStoppingCallback", "metric_for_best_model",
                              "set it, for example to eval_loss");
  }
  if (args.eval_strategy == IntervalStrategy::kNo) {
    throw UsageError::missing("EarlyStoppingCallback", "an eval_strategy",
                              "set eval_strategy to steps or epoch");
  }
  if (!args.load_best_model_at_end && event.accelerator.is_main_process()) {
    event.accelerator.log().warn(
        "early stopping without load_best_model_at_end: the training ends with its last weights, "
        "not with the best");
  }
}

void EarlyStoppingCallback::on_evaluate(TrainerEvent& event) {
  const auto name = eval_metric_name(event.args.metric_for_best_model);
  const double* const value = find_metric(*event.metrics, name);
  if (value == nullptr) {
    if (event.accelerator.is_main_process()) {
      event.accelerator.log().warn(
          fmt::format("early stopping: no {} in the evaluation; hint: set metric_for_best_model to "
                      "one of {}",
                      name, names_of(*event.metrics)));
    }
    return;
  }
  const auto& best = event.state.best_metric;
  const bool greater = event.args.greater_is_better.value_or(false);
  const bool better = !best || ((greater ? *value > *best : *value < *best) &&
                                std::abs(*value - *best) > options_.early_stopping_threshold);
  patience_counter_ = better ? 0 : patience_counter_ + 1;
  if (patience_counter_ >= options_.early_stopping_patience) {
    event.control.should_training_stop = true;
  }
}

nlohmann::json EarlyStoppingCallback::state_dict() const {
  return {{"args",
           {{"early_stopping_patience", options_.early_stopping_patience},
            {"early_stopping_threshold", options_.early_stopping_threshold}}},
          {"attributes", {{"early_stopping_patience_counter", patience_counter_}}}};
}

void EarlyStoppingCallback::load_state_dict(const nlohmann::json& state, std::string_view origin) {
  const JsonReader saved(state, json_data_error(origin));
  const JsonReader args = saved.object("args");
  const EarlyStoppingOptions options = {
      .early_stopping_patience = args.count("early_stopping_patience"),
      .early_stopping_threshold = args.number("early_stopping_threshold", 0.0)};
  patience_counter_ = saved.object("attributes").count("early_stopping_patience_counter");
  options_ = options;
}

std::string eval_metric_name(const std::string& metric) {
  return metric.starts_with("eval_") ? metric : "eval_" + metric;
}

double required_metric(const Metrics& metrics, const TrainingArguments& args) {
  const auto name = eval_metric_name(args.metric_for_best_model);
  if (const double* const value = find_metric(metrics, name)) return *value;
  throw UsageError::malformed("metric_for_best_model", "one of " + names_of(metrics), name,
                              "set it to one of these, or return it from compute_metrics");
}

}  // namespace ladder
