// SPDX-License-Identifier: Apache-2.0
#include "ladder/launch/supervisor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/core/text.h"
#include "ladder/launch/signals.h"

namespace ladder {
namespace {

bool is_consequence(const RankProcess& rank) {
  return rank.signal() == 0 && rank.exit_code() == static_cast<int>(ExitCode::kDistributed);
}

// "rank 1, step 58", or "rank 1" outside a training.
std::string name_of(const RankProcess& rank) {
  return rank.step() == 0 ? fmt::format("rank {}", rank.rank())
                          : fmt::format("rank {}, step {}", rank.rank(), rank.step());
}

std::string_view hint_for_signal(int signal) {
  if (signal == SIGKILL) return "see whether memory ran out: dmesg | grep -i 'out of memory'";
  if (signal == SIGXCPU) return "the limit of CPU time of this shell is reached: ulimit -t";
  const bool crashed = signal == SIGSEGV || signal == SIGABRT || signal == SIGBUS ||
                       signal == SIGFPE || signal == SIGILL;
  if (crashed) return "run again after: ulimit -c unlimited, and open the core file in gdb";
  return "another process sent it: see the log of your batch system";
}

constexpr std::chrono::milliseconds kLeastWait{100};

}  // namespace

void Supervisor::wait_for_all() {
  while (!running_ranks().empty() && !gave_up_) {
    wait_for_events();
    on_failures();
    on_deadline();
  }
}

void Supervisor::wait_for_events() {
  constexpr int kNoTimeout = -1;
  std::vector<pollfd> watched = {{signals_.fd(), POLLIN, 0}};
  for (const auto& rank : ranks_) watched.push_back({rank.ended_fd(), POLLIN, 0});  // -1: skipped
  const int timeout = deadline_ ? static_cast<int>(deadline_->slice().count()) : kNoTimeout;
  if (::poll(watched.data(), watched.size(), timeout) <= 0) return;
  if (watched[0].revents != 0) on_signal();
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (watched[i + 1].revents != 0) on_rank_ended(ranks_[i]);
  }
}

void Supervisor::on_signal() {
  const int signal = signals_.take();
  if (signal == 0) return;
  if (signal == SIGTSTP) return pause_all();
  if (signal_ != 0) {
    if (Clock::now() - signal_at_ >= kSignalEcho) kill_all();
  } else {
    signal_ = signal;
    signal_at_ = Clock::now();
    end_all(signal);
  }
}

void Supervisor::on_rank_ended(RankProcess& rank) {
  if (!rank.reap()) return;
  const bool failed = rank.signal() != 0 || rank.exit_code() != 0;
  if (failed && phase_ <= Phase::kWaitingForCause) failures_.push_back(&rank);
}

void Supervisor::on_failures() {
  if (failures_.empty() || phase_ > Phase::kWaitingForCause) return;
  if (!is_consequence(*first_failure())) {
    end_all(SIGTERM);
  } else if (phase_ == Phase::kAllWell) {
    enter(Phase::kWaitingForCause, grace_);
  }
}

void Supervisor::on_deadline() {
  if (!deadline_ || !deadline_->passed()) return;
  // A rank that has just saved gets the whole time, too.
  const bool has_waited = std::exchange(waits_for_save_, must_wait());
  const bool may_wait = phase_ < Phase::kKilling;
  if (may_wait && (has_waited || waits_for_save_))
    return enter(phase_, std::max(grace_, kLeastWait));
  if (phase_ == Phase::kWaitingForCause) {
    hung_ = running_ranks();
    end_all(SIGTERM);
  } else if (phase_ == Phase::kEnding) {
    survived_sigterm_ = running_ranks();
    kill_all();
  } else {
    gave_up_ = true;
  }
}

// A slow save is neither a hang nor a refusal to end.
bool Supervisor::must_wait() const {
  return phase_ < Phase::kKilling &&
         std::ranges::any_of(
             ranks_, [&](const RankProcess& rank) { return rank.saves(save_timeout_); });
}

// Ctrl-Z: the ranks stop with this process, and go on with it.
void Supervisor::pause_all() {
  for (const auto& rank : ranks_) rank.send(SIGSTOP);
  const auto stopped_at = Clock::now();
  ::raise(SIGSTOP);  // returns after SIGCONT
  longest_pause_ = std::max(longest_pause_, Clock::now() - stopped_at);
  for (const auto& rank : ranks_) rank.send(SIGCONT);
}

// A stopped process receives its signals after SIGCONT.
void Supervisor::end_all(int signal) {
  for (const auto& rank : ranks_) {
    rank.send(signal);
    rank.send(SIGCONT);
  }
  if (phase_ < Phase::kEnding) enter(Phase::kEnding, grace_);
}

void Supervisor::kill_all() {
  constexpr std::chrono::seconds kForTheKernel{10};
  for (const auto& rank : ranks_) rank.send(SIGKILL);
  enter(Phase::kKilling, kForTheKernel);
}

void Supervisor::enter(Phase phase, std::chrono::milliseconds time) {
  phase_ = phase;
  deadline_.emplace(time);
}

std::vector<std::string> Supervisor::running_ranks() const {
  std::vector<std::string> running;
  for (const auto& rank : ranks_) {
    if (!rank.is_running()) continue;
    const char state = rank.state();
    const auto saving = rank.saving();
    running.push_back(name_of(rank) + (saving.empty() ? "" : fmt::format(" (saving {})", saving)) +
                      (state == 'T' || state == 't' ? " (stopped)" : ""));
  }
  return running;
}

// A consequence counts only if there is no other failure.
const RankProcess* Supervisor::first_failure() const {
  if (failures_.empty()) return nullptr;
  const auto found = std::find_if_not(failures_.begin(), failures_.end(),
                                      [](const auto* rank) { return is_consequence(*rank); });
  return found == failures_.end() ? failures_.front() : *found;
}

std::string Supervisor::lost_checkpoints() const {
  std::vector<std::string> paths;
  for (const auto& rank : ranks_) {
    const auto path = rank.saving();
    if (rank.signal() != 0 && !path.empty() && std::ranges::find(paths, path) == paths.end()) {
      paths.push_back(path);
    }
  }
  if (paths.empty()) return "";
  return fmt::format("not saved: {}; its ranks were killed meanwhile, older checkpoints stay",
                     fmt::join(paths, ", "));
}

void Supervisor::throw_failure() const {
  const RankProcess* rank = first_failure();
  if (rank == nullptr) return;
  constexpr std::size_t kLongest = 300;
  const std::string line = rank->last_line();
  const std::string quoted =
      line.empty() ? "" : fmt::format("; its last line: \"{}\"", shortened(line, kLongest));
  if (rank->signal() != 0) {
    throw DistributedError::of(
        name_of(*rank), "exit code 0",
        fmt::format("signal {} ({}){}", rank->signal(), ::strsignal(rank->signal()), quoted),
        hint_for_signal(rank->signal()));
  }
  std::string hint;
  if (!hung_.empty()) {
    hint = fmt::format("{} hung; when it hangs again, see where: gdb -p <process id>",
                       fmt::join(hung_, ", "));
  } else if (!survived_sigterm_.empty()) {
    hint =
        fmt::format("{} ignored SIGTERM and had to be killed", fmt::join(survived_sigterm_, ", "));
  } else if (const auto pause = std::chrono::round<std::chrono::seconds>(longest_pause_);
             pause.count() > 0 && is_consequence(*rank)) {
    hint = fmt::format("the run was stopped for {} s (Ctrl-Z): its timeout counts that time",
                       pause.count());
  }
  // The line of a rank names its step, if it is about one.
  const bool has_reported = !line.empty() || is_signal_exit_code(rank->exit_code());
  throw ChildError::of(rank->exit_code(),
                       has_reported ? fmt::format("rank {}", rank->rank()) : name_of(*rank),
                       "exit code 0", fmt::format("{}{}", rank->exit_code(), quoted), hint);
}

}  // namespace ladder
