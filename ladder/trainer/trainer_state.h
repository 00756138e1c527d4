// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ladder/trainer/metrics.h"
#include "ladder/trainer/training_arguments.h"

namespace ladder {

// One entry of TrainerState::log_history.
struct LogEntry {
  std::int64_t step = 0;
  Metrics values;
};

// Whether `step` is a multiple of `interval`; false for interval 0.
inline bool is_due(std::int64_t step, std::int64_t interval) {
  return interval > 0 && step % interval == 0;
}

// Progress and log of a training. Each checkpoint has it as trainer_state.json. Python's
// counterpart, with the same names: transformers.TrainerState.
struct TrainerState {
  double epoch = 0.0;            // epochs so far, with a fraction for the present one
  std::int64_t global_step = 0;  // optimizer steps so far
  std::int64_t max_steps = 0;    // optimizer steps of the whole training
  std::int64_t num_train_epochs = 0;
  std::int64_t logging_steps = 500;  // as in TrainingArguments, fractions resolved
  std::int64_t eval_steps = 500;
  std::int64_t save_steps = 500;
  std::int64_t train_batch_size = 0;  // per device
  double total_flos = 0.0;            // floating-point operations; see floating_point_ops
  std::vector<LogEntry> log_history;
  std::optional<double> best_metric;
  std::optional<std::int64_t> best_global_step;
  std::optional<std::string> best_model_checkpoint;  // a folder
  bool is_local_process_zero = true;
  bool is_world_process_zero = true;
  std::map<std::string, nlohmann::json> stateful_callbacks;  // by the callback's name

  // Sets the three intervals; fractions of all steps become numbers.
  void compute_steps(const TrainingArguments& arguments, std::int64_t training_steps);

  static constexpr bool kSavedByRank0 = true;  // of all ranks; see json_part
  nlohmann::json state_dict() const;
  // Checks `state` and returns the function that applies it. Logging, evaluation and save intervals
  // then come from the checkpoint; max_steps, num_train_epochs, train_batch_size and the two
  // is_ ... stay those of this run. Throws DataError naming `origin`.
  std::function<void()> plan_load(const nlohmann::json& state, std::string_view origin);
};

}  // namespace ladder
