// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "ladder/comm/process_group.h"
#include "ladder/launch/signals.h"
#include "ladder/monitor/step_observer.h"

namespace ladder {

// Ends a training on one of kStopSignals after a step, the same step on all ranks.
//
//     StopSignal stop(group);
//     for (...) {
//       ...  // a step
//       if (const int signal = stop.poll_all_ranks()) {
//         ...  // save; all ranks are here
//         throw StoppedBySignal(signal, stop_line(signal, ...));
//       }
//     }
//
// While the object lives, the first signal only requests the stop; a second one ends the process at
// once. One within half a second of the first is ignored, because launchers forward a signal that
// the scheduler has already sent to every process. Signals that were ignored, as under nohup, stay
// ignored. A signal after the last poll_all_ranks() takes effect when the object is destroyed,
// unless an exception is in flight. after_save() throws StoppedBySignal if a rank has received a
// signal by then, with a line that names the checkpoint.
//
// The ranks agree by a collective of two numbers, about four times per second, in the same steps;
// a group of one rank checks after every step. Beside NCCL too, the numbers stay on the CPU and go
// by Gloo: no rank waits for its GPU.
//
// One object at a time per process. Counterpart: transformers' enable_jit_checkpoint.
class StopSignal {
 public:
  explicit StopSignal(ProcessGroup group);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // The signal that a rank has received; 0 = none, or not polled in this step. Call it after every
  // step of the optimizer: some calls are a collective. `now`: poll in this call, as after the last
  // step.
  int poll_all_ranks(bool now = false);

 private:
  void stop_after_save(const std::string& saved);
  int poll();

  ProcessGroup group_;
  std::int64_t step_ = 0;        // at the last poll_all_ranks()
  std::int64_t steps_left_ = 1;  // until the next poll
  std::int64_t interval_ = 1;    // steps between the last two polls
  double polled_at_ = 0.0;       // on the steady clock
  bool answered_ = false;        // poll_all_ranks() has returned a signal
  int exceptions_;               // in flight at construction
  SignalStack stack_;            // of the handler
  std::array<struct sigaction, kStopSignals.size()> before_{};
};

// A StopSignal from the first epoch to the end of the training.
class StopObserver : public StepObserver {
 public:
  explicit StopObserver(ProcessGroup group) : group_(std::move(group)) {}
  void begin_epoch(const EpochStart& start) override;
  Verdict step(const StepEvent& event) override;
  Verdict pause() override;
  Verdict end() override;

 private:
  ProcessGroup group_;
  std::optional<StopSignal> stop_;
};

}  // namespace ladder
