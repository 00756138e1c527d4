// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "ladder/core/progress_bar.h"
#include "ladder/trainer/metrics.h"
#include "ladder/trainer/trainer_callback.h"

namespace ladder {

// How a training looks to the person in front of it. A Trainer has one of the first two, and the
// table. The main process alone prints.

// Each log as a line on the standard output: {'loss': '0.8757', 'epoch': '0.533'}. So are the
// metrics of a prediction, which are not logged.
class PrinterCallback : public TrainerCallback {
 public:
  void on_log(TrainerEvent& event) override;
  void on_predict(TrainerEvent& event) override;
};

// The same, and a progress bar on the standard error: of the whole training, and of each
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
  // A bar, and what it has counted.
  struct Bar {
    explicit Bar(ProgressOptions options) : progress(std::move(options)) {}
    ProgressBar progress;
    std::int64_t steps = 0;
    std::int64_t samples = 0;
  };

  void make_room(const TrainerEvent& event);

  std::unique_ptr<Bar> training_;
  std::unique_ptr<Bar> prediction_;
  double loss_ = std::numeric_limits<double>::quiet_NaN();  // as logged last
};

// The table of a notebook: step or epoch, training loss, validation loss and the metrics of each
// evaluation. Printed on the standard output when the training ends; that of an evaluation outside
// of a training, at once.
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
