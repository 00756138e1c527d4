// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>

#include "ladder/monitor/training_monitor.h"
#include "ladder/trainer/trainer_callback.h"
#include "mnist/options.h"
#include "mnist/recipe.h"
#include "mnist/record.h"

namespace mnist {

// Writes the record of the stages for a training by a Trainer: the same lines and the same
// --metrics file, so that it can be compared with the others.
//
// Construct it first: its clock starts then, and reading the data counts. The first evaluation
// after the training ends the record; compute_metrics must return an "accuracy". Its monitor stops
// a training whose loss is not finite (NumericError), which a Trainer alone does not.
class RecordCallback : public ladder::TrainerCallback {
 public:
  RecordCallback(const SingleOptions& options, Recipe recipe);

  void on_init_end(ladder::TrainerEvent& event) override;
  void on_train_begin(ladder::TrainerEvent& event) override;
  void on_epoch_begin(ladder::TrainerEvent& event) override;
  void on_substep_end(ladder::TrainerEvent& event) override;
  void on_optimizer_step(ladder::TrainerEvent& event) override;
  void on_epoch_end(ladder::TrainerEvent& event) override;
  void on_train_end(ladder::TrainerEvent& event) override;
  void on_evaluate(ladder::TrainerEvent& event) override;
  void on_log(ladder::TrainerEvent& event) override;

 private:
  // run_record.json of a checkpoint. A resume reads it before the monitor exists.
  struct Progress {
    RecordCallback& callback;
    static constexpr bool kSavedByRank0 = true;  // of all ranks; see json_part
    nlohmann::json state_dict() const;
    std::function<void()> plan_load(const nlohmann::json& state, std::string_view origin) const;
  };

  const ladder::RunSettings& settings() const { return monitor_options_.settings; }

  RecordOptions options_;
  ladder::MonitorOptions monitor_options_;
  Recipe recipe_;
  std::unique_ptr<Record> record_;                    // since on_init_end
  std::unique_ptr<ladder::TrainingMonitor> monitor_;  // since on_train_begin
  ladder::TrainingProgress resumed_;
  Progress progress_{*this};
  bool is_trained_ = false;
};

}  // namespace mnist
