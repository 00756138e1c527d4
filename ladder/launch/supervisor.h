// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "ladder/launch/line_relay.h"
#include "ladder/launch/rank_process.h"
#include "ladder/launch/signal_guard.h"

namespace ladder {

struct SupervisorOptions {
  std::chrono::milliseconds grace{5000};  // see SpawnOptions
  int stderr_fd = -1;                     // see SpawnOptions
};

// Waits for started ranks, passes their lines on, and ends them all when one fails.
//
// One thread, one poll over everything that can happen: a rank ended, a rank wrote, a signal
// came, the reader of the lines is ready, a deadline passed. It never blocks anywhere else.
//
// The phases: kAllWell, until a rank fails. If it says "I lost another rank" (exit code 4),
// kWaitingForCause: the one it lost may fail too. Then kEnding: all were asked to end (SIGTERM),
// and kKilling: all were made to (SIGKILL).
class Supervisor {
 public:
  Supervisor(std::deque<RankProcess>& ranks, const SignalGuard& signals,
             const SupervisorOptions& options);

  // Returns when every rank has ended. Only processes that not even SIGKILL ends, as those that
  // wait for a broken disk, are given up after ten seconds.
  void wait_for_all();

  // The signal that asked this process to end; 0 if none.
  int signal() const { return signal_; }
  // Throws ChildError or DistributedError about the rank that failed first, unless none did.
  void throw_failure() const;

 private:
  using Clock = std::chrono::steady_clock;
  enum class Phase { kAllWell, kWaitingForCause, kEnding, kKilling };

  void wait_for_events();
  int milliseconds_to_wait() const;
  void read_errors(RankProcess& rank);
  void on_signal();
  void on_rank_ended(RankProcess& rank);
  void on_failures();
  void on_deadline();
  void end_all(int signal);
  void kill_all();
  void enter(Phase phase, std::chrono::milliseconds time);
  bool anyone_runs() const;
  std::vector<std::string> still_running() const;
  const RankProcess* cause() const;
  std::string hint() const;

  std::deque<RankProcess>& ranks_;
  const SignalGuard& signals_;
  SupervisorOptions options_;
  LineRelay relay_;
  Phase phase_ = Phase::kAllWell;
  std::optional<Clock::time_point> deadline_;
  std::vector<const RankProcess*> failures_;  // in order of time, up to the end of kWaitingForCause
  std::vector<std::string> hung_;             // ranks that did not fail in kWaitingForCause
  std::vector<std::string> survived_sigterm_;  // ranks that SIGTERM did not end
  int signal_ = 0;
  Clock::time_point signal_at_;
  bool gave_up_ = false;
};

}  // namespace ladder
