// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "ladder/core/clock.h"
#include "ladder/launch/rank_process.h"
#include "ladder/launch/signals.h"

namespace ladder {

// Waits for started ranks, and ends them all when one fails.
//
// One thread and one poll over the ends of ranks, signals and the deadline; it blocks nowhere else.
//
// The phases: kAllWell, until a rank fails. After a consequence (exit code 4, "I lost another
// rank") kWaitingForCause: the lost rank may fail too. Then kEnding: all ranks got SIGTERM, and
// kKilling: all ranks got SIGKILL.
class Supervisor {
 public:
  // `grace`, `save_timeout`: see SpawnOptions.
  Supervisor(std::deque<RankProcess>& ranks, const SignalGuard& signals,
             std::chrono::milliseconds grace, std::chrono::milliseconds save_timeout)
      : ranks_(ranks), signals_(signals), grace_(grace), save_timeout_(save_timeout) {}

  // Returns when every rank has ended. A process that survives SIGKILL, such as one that waits for
  // a broken disk, is abandoned after ten seconds.
  void wait_for_all();

  // The signal to this process that ended the ranks; 0 if none.
  int signal() const { return signal_; }
  // Throws ChildError or DistributedError about the rank that failed first; returns if none did.
  void throw_failure() const;
  // One line about the checkpoints that killed ranks were saving; "" if there were none.
  std::string lost_checkpoints() const;

 private:
  using Clock = std::chrono::steady_clock;
  enum class Phase { kAllWell, kWaitingForCause, kEnding, kKilling };

  void wait_for_events();
  void on_signal();
  void on_rank_ended(RankProcess& rank);
  void on_failures();
  void on_deadline();
  bool must_wait() const;
  void pause_all();
  void end_all(int signal);
  void kill_all();
  void enter(Phase phase, std::chrono::milliseconds time);
  std::vector<std::string> running_ranks() const;
  const RankProcess* first_failure() const;

  std::deque<RankProcess>& ranks_;
  const SignalGuard& signals_;
  std::chrono::milliseconds grace_;
  std::chrono::milliseconds save_timeout_;
  Phase phase_ = Phase::kAllWell;
  std::optional<Deadline> deadline_;
  std::vector<const RankProcess*> failures_;  // in order of time, up to the end of kWaitingForCause
  std::vector<std::string> hung_;             // ranks that did not fail in kWaitingForCause
  std::vector<std::string> survived_sigterm_;  // ranks that SIGTERM did not end
  int signal_ = 0;
  Clock::time_point signal_at_;
  Clock::duration longest_pause_{};  // between Ctrl-Z and fg
  bool waits_for_save_ = false;      // at the last deadline
  bool gave_up_ = false;
};

}  // namespace ladder
