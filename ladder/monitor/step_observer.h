// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "ladder/data/batch.h"
#include "ladder/monitor/loss_meter.h"
#include "ladder/monitor/monitor_options.h"
#include "ladder/monitor/run_setup.h"

namespace ladder {

struct EpochStart {
  std::int64_t epoch = 1;            // counts from 1
  std::int64_t epochs = 1;           // of the training
  std::int64_t batches = 0;          // of a rank in this epoch, without those before a resume
  std::int64_t steps = 0;            // of the optimizer so far
  std::shared_ptr<LossMeter> meter;  // of this epoch: it has each loss before the observers see the
                                     // step; null: an observer reads the losses itself
};

// A batch whose gradients are computed. If `updated`, the optimizer has stepped, and the gradients
// are still there.
struct StepEvent {
  const torch::nn::Module& model;
  const Batch& batch;
  const torch::Tensor& loss;  // of the batch, before it is scaled for its accumulation window
  std::int64_t step = 0;      // to which the batch belongs; counts from 1 over the whole run
  bool updated = true;        // false for all but the last batch of an accumulation window
  std::int64_t batches = 0;   // of this epoch so far, without those before a resume
  std::int64_t samples = 0;   // of these, over all ranks
  double mean_loss = std::numeric_limits<double>::quiet_NaN();  // of this rank's batch; NaN: not
                                                                // read from the device
};

// Whether the training goes on: the same on all ranks. Else the loop saves and throws
// StoppedBySignal.
struct Verdict {
  int signal = 0;  // of kStopSignals; 0 = go on
  explicit operator bool() const { return signal != 0; }
};

// Observes the steps of a training, by a TrainingMonitor or a Trainer. All ranks call it alike, so
// each function may be a collective. An exception ends the training.
//
//     struct GradientLog : StepObserver {
//       Verdict step(const StepEvent& event) override {
//         if (event.updated) write(event.step, norm_of(event.model));
//         return {};
//       }
//     };
//     monitor.observe(std::make_shared<GradientLog>());
class StepObserver {
 public:
  StepObserver() = default;
  virtual ~StepObserver() = default;
  StepObserver(const StepObserver&) = delete;
  StepObserver& operator=(const StepObserver&) = delete;

  virtual void begin_epoch(const EpochStart& /*start*/) {}
  virtual Verdict step(const StepEvent& /*event*/) { return {}; }  // counts if `updated`
  // Between two steps, where a Trainer has saved, evaluated or ended an epoch.
  virtual Verdict pause() { return {}; }
  virtual void end_epoch() {}
  // The training has ended. Another one may begin.
  virtual Verdict end() { return {}; }
  // Other output follows: of an error, or of a save after a signal.
  virtual void interrupt() {}
};

// Several as one, in the order in which they were added, except that ends run in reverse order.
class StepObservers : public StepObserver {
 public:
  void add(std::shared_ptr<StepObserver> observer);

  void begin_epoch(const EpochStart& start) override;
  // Returns the first verdict that ends the training; the observers behind it do not see the step.
  // Before this and before an exception, all are interrupted.
  Verdict step(const StepEvent& event) override;
  Verdict pause() override;
  void end_epoch() override;
  // Ends all, and returns the last such verdict.
  Verdict end() override;
  void interrupt() override;

 private:
  Verdict interrupted(Verdict verdict);

  std::vector<std::shared_ptr<StepObserver>> observers_;
};

// Adds the observers of a run. `model` must outlive them.
using MakeObservers = std::function<void(StepObservers& observers, const MonitorOptions& options,
                                         const RunSetup& setup, const torch::nn::Module& model)>;

// Those of programs that link observers.h: fingerprint, trace, loss guard, progress bar, stop
// signal, and the step in errors of launchers, as far as `options` wants them. None in other
// programs. Throws UsageError for fingerprints without fingerprint_beside, and for what is not
// linked.
void usual_observers(StepObservers& observers, const MonitorOptions& options, const RunSetup& setup,
                     const torch::nn::Module& model);
// Makes `make` add them; before main(). Returns true.
bool set_usual_observers(MakeObservers make);

}  // namespace ladder
