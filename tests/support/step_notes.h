// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/core.h>

#include <csignal>
#include <cstdint>
#include <string>
#include <vector>

#include "ladder/monitor/step_observer.h"

namespace ladder {

// Notes what it observes, and ends the training after a step.
class StepNotes : public StepObserver {
 public:
  explicit StepNotes(std::int64_t last_step = -1) : last_step_(last_step) {}

  void begin_epoch(const EpochStart& start) override {
    notes.push_back(fmt::format("epoch {}/{}, {} batches after step {}", start.epoch, start.epochs,
                                start.batches, start.steps));
  }
  Verdict step(const StepEvent& event) override {
    notes.push_back(fmt::format("{} {}, batch {}, sample {}",
                                event.updated ? "step" : "part of step", event.step, event.batches,
                                event.samples));
    return {event.updated && event.step == last_step_ ? SIGTERM : 0};
  }
  Verdict pause() override { return note("pause"); }
  void end_epoch() override { note("end of epoch"); }
  Verdict end() override { return note("end"); }
  void interrupt() override { note("interrupt"); }

  std::vector<std::string> notes;

 private:
  Verdict note(const char* text) {
    notes.emplace_back(text);
    return {};
  }

  std::int64_t last_step_;
};

}  // namespace ladder
