// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

#include "ladder/observe/progress_bar.h"
#include "ladder/trainer/metrics.h"
#include "ladder/trainer/trainer_callback.h"

namespace ladder {

// Output of a training, by the main process. A Trainer has one of the first two callbacks, and the
// table.

// Prints each log as a line on the standard output: {'loss': '0.8757', 'epoch': '0.533'}, and the
// metrics of a prediction, which are not logged.
class PrinterCallback : public TrainerCallback {
 public:
  void on_log(TrainerEvent& event) override;
  void on_predict(TrainerEvent& event) override;
};

// The same, with a progress bar on the standard error for the whole training and for each
// evaluation (see ProgressBar).
class ProgressCallback : public TrainerCallback {
 public:
  void on_train_begin(TrainerEvent& event) override;
  void on_step_end(TrainerEvent& event) override;
  void on_epoch_end(TrainerEvent& event) override;
  void on_train_end(TrainerEvent& event) override;
  void on_prediction_step(TrainerEvent& event) override;
  void on_evaluate(TrainerEvent& event) override;
  void on_predict(TrainerEvent& event) override;
  void on_log(TrainerEvent& event) override;

 private:
  struct Bar {
    explicit Bar(ProgressOptions options) : progress(std::move(options)) {}
    ProgressBar progress;
    std::int64_t steps = 0;
    std::int64_t samples = 0;
  };

  void clear_for_evaluation(const TrainerEvent& event);

  std::unique_ptr<Bar> training_;
  std::unique_ptr<Bar> prediction_;
  double loss_ = std::numeric_limits<double>::quiet_NaN();  // of the last log
};

// Prints the table of a notebook to the standard output: step or epoch, training loss, validation
// loss and metrics, one row per evaluation. It prints at the end of the training, and after an
// evaluation outside of a training.
class TableCallback : public TrainerCallback {
 public:
  void on_train_begin(TrainerEvent& event) override;
  void on_log(TrainerEvent& event) override;
  void on_evaluate(TrainerEvent& event) override;
  void on_train_end(TrainerEvent& event) override;

  const MetricsTable& table() const { return table_; }  // the last one

 private:
  MetricsTable table_;
  bool in_training_ = false;
};

}  // namespace ladder
