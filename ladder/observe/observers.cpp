// SPDX-License-Identifier: Apache-2.0
#include "ladder/observe/observers.h"

#include <fmt/core.h>

#include "ladder/amp/precision.h"
#include "ladder/armour/loss_guard.h"
#include "ladder/armour/stop_signal.h"
#include "ladder/core/error.h"
#include "ladder/core/log.h"
#include "ladder/launch/rank_status.h"
#include "ladder/observe/fingerprint.h"
#include "ladder/observe/step_trace.h"

namespace ladder {

void step_checks(StepObservers& observers, const MonitorOptions& options, const RunSetup& setup,
                 const torch::nn::Module& model) {
  const int rank = setup.group.rank();
  if (options.fingerprint != 0) {
    if (options.fingerprint_beside.empty()) {
      throw UsageError::missing("fingerprint", "fingerprint_beside, a file to write beside",
                                "set MonitorOptions::fingerprint_beside");
    }
    const auto path = Fingerprint::path_beside(options.fingerprint_beside, rank);
    const auto fingerprint =
        std::make_shared<Fingerprint>(path, options.fingerprint, rank, setup.group.world_size());
    fingerprint->observe(model, name_of(setup.precision));
    observers.add(fingerprint);
  }
  if (!options.trace.empty()) {
    observers.add(std::make_shared<StepTrace>(StepTrace::path_of_rank(options.trace, rank), rank));
  }
  observers.add(std::make_shared<LossGuard>(model, setup));
}

void ProgressObserver::begin_epoch(const EpochStart& start) {
  bar_ = std::make_unique<ProgressBar>(
      ProgressOptions{.total = start.batches,
                      .label = fmt::format("epoch {}/{}", start.epoch, start.epochs),
                      .terminal = is_terminal(stderr)});
}

Verdict ProgressObserver::step(const StepEvent& event) {
  bar_->update(event.batches, event.samples, event.mean_loss);
  return {};
}

void ProgressObserver::end_epoch() {
  bar_->finish();
  bar_.reset();
}

void ProgressObserver::interrupt() {
  if (bar_ != nullptr) bar_->finish();
}

void CurrentStep::begin_epoch(const EpochStart& start) { set_current_step(start.steps + 1); }

Verdict CurrentStep::step(const StepEvent& event) {
  if (event.updated) set_current_step(event.step + 1);
  return {};
}

void CurrentStep::end_epoch() { set_current_step(0); }

namespace {

void all_observers(StepObservers& observers, const MonitorOptions& options, const RunSetup& setup,
                   const torch::nn::Module& model) {
  step_checks(observers, options, setup, model);
  const bool prints = options.progress && !options.quiet && setup.group.rank() == 0;
  if (prints) observers.add(std::make_shared<ProgressObserver>());
  observers.add(std::make_shared<StopObserver>(setup.group));
  observers.add(std::make_shared<CurrentStep>());
}

}  // namespace

extern "C" const bool ladder_observers;
const bool ladder_observers = set_usual_observers(all_observers);

}  // namespace ladder
