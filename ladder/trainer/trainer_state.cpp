// SPDX-License-Identifier: Apache-2.0
#include "ladder/trainer/trainer_state.h"

#include <fmt/core.h>

#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "ladder/checkpoint/saved_json.h"
#include "ladder/core/error.h"

namespace ladder {
namespace {

constexpr const char* kHint = "take a checkpoint that a Trainer wrote";

std::int64_t steps_of(double steps, std::int64_t training_steps) {
  const auto all = static_cast<double>(training_steps);
  return static_cast<std::int64_t>(steps < 1.0 ? std::ceil(all * steps) : steps);
}

nlohmann::json json_of(const LogEntry& entry) {
  auto json = to_json(entry.values);
  json["step"] = entry.step;
  return json;
}

// A number of any sign; null is NaN.
double number_of(const nlohmann::json& value, std::string_view name, std::string_view origin) {
  if (value.is_null()) return std::numeric_limits<double>::quiet_NaN();
  if (!value.is_number()) {
    throw DataError::mismatch(origin, fmt::format("{}, a number", name), value.type_name(), kHint);
  }
  return value.get<double>();
}

LogEntry entry_of(const nlohmann::json& json, std::string_view origin) {
  LogEntry entry{.step = saved_count(json, "step", origin), .values = {}};
  for (const auto& [name, value] : json.items()) {
    if (name != "step") entry.values[name] = number_of(value, name, origin);
  }
  return entry;
}

std::vector<LogEntry> history_of(const nlohmann::json& state, std::string_view origin) {
  const auto saved = saved_value(state, "log_history");
  if (!saved.is_array()) {
    throw DataError::mismatch(origin, "a list log_history", saved.type_name(), kHint);
  }
  std::vector<LogEntry> history;
  for (const auto& entry : saved) history.push_back(entry_of(entry, origin));
  return history;
}

std::map<std::string, nlohmann::json> callbacks_of(const nlohmann::json& state,
                                                   std::string_view origin) {
  const auto saved = saved_value(state, "stateful_callbacks");
  if (!saved.is_object()) {
    throw DataError::mismatch(origin, "an object stateful_callbacks", saved.type_name(), kHint);
  }
  return saved.get<std::map<std::string, nlohmann::json>>();
}

template <typename Value>
nlohmann::json json_of(const std::optional<Value>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

}  // namespace

void TrainerState::compute_steps(const TrainingArguments& arguments, std::int64_t training_steps) {
  logging_steps = steps_of(arguments.logging_steps, training_steps);
  eval_steps = steps_of(arguments.eval_steps.value_or(arguments.logging_steps), training_steps);
  save_steps = steps_of(arguments.save_steps, training_steps);
}

nlohmann::json TrainerState::state_dict() const {
  auto history = nlohmann::json::array();
  for (const auto& entry : log_history) history.push_back(json_of(entry));
  return {{"epoch", epoch},
          {"global_step", global_step},
          {"max_steps", max_steps},
          {"num_train_epochs", num_train_epochs},
          {"logging_steps", logging_steps},
          {"eval_steps", eval_steps},
          {"save_steps", save_steps},
          {"train_batch_size", train_batch_size},
          {"total_flos", total_flos},
          {"log_history", history},
          {"best_metric", json_of(best_metric)},
          {"best_global_step", json_of(best_global_step)},
          {"best_model_checkpoint", json_of(best_model_checkpoint)},
          {"is_local_process_zero", is_local_process_zero},
          {"is_world_process_zero", is_world_process_zero},
          {"stateful_callbacks", stateful_callbacks}};
}

std::function<void()> TrainerState::plan_load(const nlohmann::json& state,
                                              std::string_view origin) {
  auto loaded = std::make_shared<TrainerState>(*this);
  loaded->epoch = saved_number(state, "epoch", origin);
  loaded->global_step = saved_count(state, "global_step", origin);
  loaded->total_flos = saved_number(state, "total_flos", origin);
  loaded->logging_steps = saved_count(state, "logging_steps", origin);
  loaded->eval_steps = saved_count(state, "eval_steps", origin);
  loaded->save_steps = saved_count(state, "save_steps", origin);
  loaded->log_history = history_of(state, origin);
  loaded->stateful_callbacks = callbacks_of(state, origin);
  const auto metric = saved_value(state, "best_metric");
  if (!metric.is_null()) loaded->best_metric = number_of(metric, "best_metric", origin);
  if (!saved_value(state, "best_global_step").is_null()) {
    loaded->best_global_step = saved_count(state, "best_global_step", origin);
  }
  const auto best = saved_value(state, "best_model_checkpoint");
  if (best.is_string()) loaded->best_model_checkpoint = best.get<std::string>();
  return [this, loaded] { *this = std::move(*loaded); };
}

}  // namespace ladder
