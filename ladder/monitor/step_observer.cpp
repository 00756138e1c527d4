// SPDX-License-Identifier: Apache-2.0
#include "ladder/monitor/step_observer.h"

#include <ranges>
#include <utility>

#include "ladder/core/error.h"

namespace ladder {

void StepObservers::add(std::shared_ptr<StepObserver> observer) {
  observers_.push_back(std::move(observer));
}

void StepObservers::begin_epoch(const EpochStart& start) {
  for (const auto& observer : observers_) observer->begin_epoch(start);
}

Verdict StepObservers::step(const StepEvent& event) {
  try {
    for (const auto& observer : observers_) {
      const auto verdict = observer->step(event);
      if (verdict && event.updated) return interrupted(verdict);
    }
  } catch (...) {
    interrupt();
    throw;
  }
  return {};
}

Verdict StepObservers::pause() {
  for (const auto& observer : observers_) {
    if (const auto verdict = observer->pause()) return interrupted(verdict);
  }
  return {};
}

void StepObservers::end_epoch() {
  for (const auto& observer : std::views::reverse(observers_)) observer->end_epoch();
}

Verdict StepObservers::end() {
  Verdict last;
  for (const auto& observer : std::views::reverse(observers_)) {
    if (const auto verdict = observer->end()) last = verdict;
  }
  return last ? interrupted(last) : last;
}

void StepObservers::interrupt() {
  for (const auto& observer : observers_) observer->interrupt();
}

Verdict StepObservers::interrupted(Verdict verdict) {
  interrupt();
  return verdict;
}

namespace {

MakeObservers& usual() {
  static MakeObservers make;
  return make;
}

}  // namespace

void usual_observers(StepObservers& observers, const MonitorOptions& options, const RunSetup& setup,
                     const torch::nn::Module& model) {
  if (usual()) return usual()(observers, options, setup, model);
  if (options.fingerprint != 0 || !options.trace.empty()) {
    throw UsageError::conflict("MonitorOptions", "fingerprint or trace in a program without them",
                               "link ladder::observe");
  }
}

bool set_usual_observers(MakeObservers make) {
  usual() = std::move(make);
  return true;
}

}  // namespace ladder
