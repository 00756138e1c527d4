// SPDX-License-Identifier: Apache-2.0
#include "ladder/trainer/trainer_state.h"

#include <fmt/core.h>

#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "ladder/core/largest_counts.h"
#include "ladder/io/json.h"

namespace ladder {
namespace {

std::int64_t steps_of(double steps, std::int64_t training_steps) {
  const auto all = static_cast<double>(training_steps);
  return static_cast<std::int64_t>(steps < 1.0 ? std::ceil(all * steps) : steps);
}

LogEntry entry_of(const nlohmann::json& json, const JsonRefusal& refuse, std::int64_t global_step) {
  const JsonReader saved(json, refuse, " in log_history");
  LogEntry entry{.step = saved.count("step", global_step), .values = {}};
  for (const auto& [name, value] : json.items()) {
    if (name == "step") continue;
    const bool is_nan = value.is_null();  // JSON has no NaN
    entry.values[name] = is_nan ? std::numeric_limits<double>::quiet_NaN() : saved.number(name);
  }
  return entry;
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
  for (const auto& entry : log_history) {
    history.push_back(to_json(entry.values));
    history.back()["step"] = entry.step;
  }
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
  const auto refuse = json_data_error(origin, "take a checkpoint that a Trainer wrote");
  const JsonReader saved(state, refuse);
  auto loaded = std::make_shared<TrainerState>(*this);
  loaded->epoch = saved.number("epoch", 0.0);
  if (loaded->epoch > static_cast<double>(kMaxEpochs)) {
    saved.refuse_value(fmt::format("at most {} epochs", kMaxEpochs), "epoch");
  }
  loaded->global_step = saved.count("global_step", kMaxOptimizerSteps);
  loaded->total_flos = saved.number("total_flos", 0.0);
  loaded->logging_steps = saved.count("logging_steps", kMaxOptimizerSteps);
  loaded->eval_steps = saved.count("eval_steps", kMaxOptimizerSteps);
  loaded->save_steps = saved.count("save_steps", kMaxOptimizerSteps);
  loaded->log_history.clear();
  for (const auto& entry : saved.array("log_history")) {
    loaded->log_history.push_back(entry_of(entry, refuse, loaded->global_step));
  }
  saved.object("stateful_callbacks");  // refuses anything else
  saved.value("stateful_callbacks").get_to(loaded->stateful_callbacks);
  if (!saved.value("best_metric").is_null()) loaded->best_metric = saved.number("best_metric");
  if (!saved.value("best_global_step").is_null()) {
    loaded->best_global_step = saved.count("best_global_step", loaded->global_step);
  }
  const auto& best = saved.value("best_model_checkpoint");
  if (best.is_string()) loaded->best_model_checkpoint = best.get<std::string>();
  return [this, loaded] { *this = std::move(*loaded); };
}

}  // namespace ladder
