// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <csignal>
#include <cstdint>
#include <string>

#include "ladder/comm/process_group.h"

namespace ladder {

// While it lives, SIGINT and SIGTERM do not end this process: they ask the training to end after a
// step, the same on all ranks.
//
//     StopRequest stop(group, device);
//     for (...) {
//       ...  // a step
//       if (const int signal = stop.agreed()) {
//         ...  // save; all ranks are here
//         throw Interruption(signal, stop_line(signal, ...));
//       }
//     }
//
// A second signal does what it would have done without a StopRequest: it ends the process at once.
// One within half a second of the first does not count, because a launcher passes on what a
// scheduler has sent to all. Signals that are ignored, as nohup has it, stay ignored. One that came
// too late for agreed() to tell of it acts when the StopRequest goes, unless an error is on its
// way.
//
// Which step is the last is agreed by a collective of two numbers, not in every step: about four
// times a second, at steps that all ranks choose alike. So all stop within a quarter of a second
// or a step, whichever is longer. A process alone looks after every step.
//
// One at a time in a process. Counterpart: transformers' enable_jit_checkpoint, which saves on
// SIGTERM, each rank for itself.
class StopRequest {
 public:
  // `device`: where the collective's numbers lie; a GPU for NCCL.
  explicit StopRequest(ProcessGroup group, const torch::Device& device = torch::kCPU);
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  // The signal that some rank has been sent; 0 = none, or not asked in this step. Call it after
  // every step of the optimizer. In some calls a collective: ranks that take different numbers of
  // steps are found out there. `now`: in this call, as after the last step.
  int agreed(bool now = false);

 private:
  int ask();

  ProcessGroup group_;
  torch::Device device_;
  std::int64_t steps_left_ = 1;  // until the ranks ask each other
  std::int64_t interval_ = 1;    // steps between the last two times
  double asked_at_ = 0.0;        // on the steady clock
  bool answered_ = false;        // agreed() has told of a signal
  int exceptions_;               // in flight when it began
  struct sigaction interrupt_before_{};
  struct sigaction terminate_before_{};
};

// "SIGTERM: stopped after step 57; saved out/checkpoint-57, ..." `checkpoint`: where it was saved;
// empty = it was not.
std::string stop_line(int signal, std::int64_t step, const std::string& checkpoint);

}  // namespace ladder
