// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "ladder/train/recipe.h"
#include "ladder/train/run_record.h"
#include "ladder/trainer/trainer_callback.h"

namespace ladder {

// Writes the record of the stages (run_record.h) for a training without a loop of its own: the same
// lines and the same --metrics file, so that it compares with the others.
//
// Make it first: its clock starts then, and reading the data counts. The first evaluation after the
// training ends the record; compute_metrics must give it an "accuracy". With one in the Trainer, a
// loss that is not finite stops the training (NumericError).
class RunRecordCallback : public TrainerCallback {
 public:
  RunRecordCallback(RunRecordOptions options, Recipe recipe);

  void on_init_end(TrainerEvent& event) override;
  void on_train_begin(TrainerEvent& event) override;
  void on_epoch_begin(TrainerEvent& event) override;
  void on_substep_end(TrainerEvent& event) override;
  void on_optimizer_step(TrainerEvent& event) override;
  void on_epoch_end(TrainerEvent& event) override;
  void on_train_end(TrainerEvent& event) override;
  void on_evaluate(TrainerEvent& event) override;
  void on_log(TrainerEvent& event) override;

 private:
  RunRecordOptions options_;
  Recipe recipe_;
  std::unique_ptr<RunRecord> record_;  // once the ranks are known
  bool is_trained_ = false;
};

}  // namespace ladder
