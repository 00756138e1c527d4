// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "ladder/monitor/monitor_options.h"
#include "ladder/monitor/run_setup.h"
#include "ladder/monitor/step_observer.h"
#include "ladder/observe/progress_bar.h"

namespace ladder {

// The observers that a TrainingMonitor can have, in this order:
//
//     Fingerprint       hashes of the step             fingerprint.h
//     StepTrace         a Chrome trace                 step_trace.h
//     LossGuard         a loss that is not finite      loss_guard.h
//     ProgressObserver  a ProgressBar per epoch        progress_bar.h
//     StopObserver      signals that end the run       stop_signal.h
//     CurrentStep       the step in launchers' errors  rank_status.h
//
// usual_observers() adds all of them, step_checks() the first three: for a loop in which something
// else shows progress and handles signals, such as the callback of a Trainer.
void step_checks(StepObservers& observers, const MonitorOptions& options, const RunSetup& setup,
                 const torch::nn::Module& model);

// For rank 0.
class ProgressObserver : public StepObserver {
 public:
  void begin_epoch(const EpochStart& start) override;
  Verdict step(const StepEvent& event) override;
  void end_epoch() override;
  void interrupt() override;

 private:
  std::unique_ptr<ProgressBar> bar_;  // of the epoch in progress
};

// Calls set_current_step().
class CurrentStep : public StepObserver {
 public:
  void begin_epoch(const EpochStart& start) override;
  Verdict step(const StepEvent& event) override;
  void end_epoch() override;
};

}  // namespace ladder
