// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "ladder/core/log.h"
#include "ladder/data/batch.h"
#include "ladder/monitor/loss_meter.h"
#include "ladder/monitor/monitor_options.h"
#include "ladder/monitor/run_settings.h"
#include "ladder/monitor/run_setup.h"
#include "ladder/monitor/step_observer.h"

namespace ladder {

// One epoch, without its part before a resume.
struct EpochSummary {
  std::int64_t epoch = 0;    // counts from 1
  std::int64_t steps = 0;    // batches of a rank
  std::int64_t samples = 0;  // of all ranks
  double train_loss = 0.0;   // mean over these samples
  double seconds = 0.0;
};

// The whole training, the part before a resume included.
struct TrainingTotals {
  std::int64_t steps = 0;  // of the optimizer
  std::int64_t samples = 0;
  double train_loss = 0.0;     // of the last epoch
  double train_seconds = 0.0;  // within epochs
  double first_step_at = 0.0;  // end of the first step of this run, on the steady clock; NaN = none
  // train_seconds of the first kWarmUpSteps steps; NaN = fewer steps, or a resume after them.
  double warm_up_seconds = 0.0;
};

// The part of TrainingTotals in a checkpoint.
struct TrainingProgress {
  std::int64_t steps = 0;
  std::int64_t samples = 0;
  double train_seconds = 0.0;
};
// With the settings of the run under "settings".
nlohmann::json to_json(const TrainingProgress& progress, const RunSettings& settings);
// Compares the settings (see compare_settings). Throws DataError or UsageError naming `origin`.
TrainingProgress training_progress(const nlohmann::json& state, std::string_view origin,
                                   const RunSettings& settings, const Log& log);

// Counts the steps of a training loop, and passes them to its observers.
//
//     TrainingMonitor monitor(options, setup, *model, loader.size());
//     for (std::int64_t epoch = 1; epoch <= epochs; ++epoch) {
//       monitor.begin_epoch(epoch, epochs);
//       for (const Batch& batch : loader) {
//         ...  // forward, backward, optimizer.step()
//         monitor.step(batch, loss);
//         optimizer.zero_grad();
//       }
//       const EpochSummary summary = monitor.end_epoch();
//     }
//     monitor.end_training();
//
// Only rank 0 prints. step(), end_epoch() and end_training() are collectives, step() not each time.
class TrainingMonitor {
 public:
  // In these first steps of the optimizer, libraries choose kernels and allocate memory.
  static constexpr std::int64_t kWarmUpSteps = 20;

  // `model` must outlive the monitor. `batches`: of this rank in one epoch. `make` adds the first
  // observers; UsageError of usual_observers for fingerprints without fingerprint_beside.
  TrainingMonitor(MonitorOptions options, RunSetup setup, const torch::nn::Module& model,
                  std::int64_t batches, const MakeObservers& make = usual_observers);

  // Adds an observer behind those that there are.
  void observe(std::shared_ptr<StepObserver> observer) { observers_.add(std::move(observer)); }

  // Epochs count from 1. `done`: batches of this epoch before a resume. From the first call on,
  // a StopObserver ends the run after a step instead of at once. Throws DataError for an epoch
  // without batches, which would train nothing.
  void begin_epoch(std::int64_t epoch, std::int64_t epochs, std::int64_t done = 0);

  // Call it after optimizer.step() and before zero_grad(). `updated`: whether the optimizer
  // stepped; false for all but the last micro-batch of an accumulation window.
  //
  // Throws, on all ranks in the same step: UsageError if the micro-batches of the batch are not
  // those of the model (see ReplicateOptions); StoppedBySignal after the verdict of an observer,
  // once setup.checkpoints.save returned; and what the observers throw, such as NumericError and
  // DistributedError for a loss that is not finite (see LossGuard).
  void step(const Batch& batch, const torch::Tensor& loss, bool updated = true);

  // Throws as step() does.
  EpochSummary end_epoch();

  // Ends the observers, and throws StoppedBySignal for a signal since the last step. From now on,
  // signals end the program at once again.
  void end_training();

  TrainingTotals totals() const;

  // Steps of the optimizer, including those before a resume.
  std::int64_t steps() const { return progress_.steps; }

  // Batches of the epoch in progress, including those before a resume; 0 between two epochs.
  std::int64_t batches_done() const { return done_ + epoch_.steps; }

  // Mean over the samples of all ranks, of the last epoch or of its part since a resume; NaN if a
  // loss was not finite.
  double train_loss() const { return train_loss_; }

  // Whether the last step() was of the optimizer and its number is a multiple of `steps` > 0.
  bool every(std::int64_t steps) const {
    return updated_ && steps > 0 && progress_.steps % steps == 0;
  }

  // For Accelerator::register_for_checkpointing: the progress, and the settings of the run.
  // plan_load compares the settings; it throws DataError or UsageError naming `origin`.
  static constexpr bool kSavedByRank0 = true;  // of all ranks; see json_part
  nlohmann::json state_dict() const;
  std::function<void()> plan_load(const nlohmann::json& state, std::string_view origin);
  void restore(const TrainingProgress& progress) { progress_ = progress; }

 private:
  void stop_after(Verdict verdict);
  void print(const std::string& line, std::int64_t epoch, std::int64_t epochs) const;
  double open_epoch_seconds() const;  // since begin_epoch; 0 after end_epoch

  MonitorOptions options_;
  RunSetup setup_;
  const torch::nn::Module& model_;
  const std::int64_t micro_batch_;
  std::int64_t batches_;
  std::shared_ptr<LossMeter> meter_;
  StepObservers observers_;
  bool in_epoch_ = false;
  TrainingProgress progress_;  // without the epoch in progress, except the steps
  EpochSummary epoch_;
  std::int64_t done_ = 0;  // batches of this epoch before a resume
  double epoch_started_ = 0.0;
  bool updated_ = false;  // by the last step()
  double train_loss_ = std::numeric_limits<double>::quiet_NaN();
  double first_step_at_ = std::numeric_limits<double>::quiet_NaN();
  double warm_up_seconds_ = std::numeric_limits<double>::quiet_NaN();
};

}  // namespace ladder
