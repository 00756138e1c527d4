// SPDX-License-Identifier: Apache-2.0
#include "ladder/launch/supervisor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <string_view>

#include "ladder/core/error.h"
#include "ladder/core/stopped_by_signal.h"

namespace ladder {
namespace {

constexpr std::chrono::seconds kForTheKernel{10};

bool failed(const RankProcess& rank) { return rank.signal() != 0 || rank.exit_code() != 0; }

bool is_consequence(const RankProcess& rank) {
  return rank.signal() == 0 && rank.exit_code() == static_cast<int>(ExitCode::kDistributed);
}

// "rank 1, step 58", or "rank 1" outside a training.
std::string name_of(const RankProcess& rank) {
  return rank.step() == 0 ? fmt::format("rank {}", rank.rank())
                          : fmt::format("rank {}, step {}", rank.rank(), rank.step());
}

std::string described(const RankProcess& rank) {
  const char state = rank.state();
  return fmt::format("{}{}", name_of(rank), state == 'T' || state == 't' ? " (stopped)" : "");
}

std::string quoted_last_line(std::string_view line) {
  constexpr std::size_t kLongest = 300;
  const std::string_view cut = line.size() > kLongest ? "..." : "";
  return line.empty() ? ""
                      : fmt::format("; its last line: \"{}{}\"", line.substr(0, kLongest), cut);
}

std::string_view hint_for_signal(int signal) {
  if (signal == SIGKILL) return "see whether memory ran out: dmesg | grep -i 'out of memory'";
  const bool crashed = signal == SIGSEGV || signal == SIGABRT || signal == SIGBUS ||
                       signal == SIGFPE || signal == SIGILL;
  if (crashed) return "run again after: ulimit -c unlimited, and open the core file in gdb";
  return "another process sent it: see the log of your batch system";
}

DistributedError killed(const RankProcess& rank, std::string_view last_line) {
  const int signal = rank.signal();
  return DistributedError::of(
      name_of(rank), "exit code 0",
      fmt::format("signal {} ({}){}", signal, ::strsignal(signal), quoted_last_line(last_line)),
      hint_for_signal(signal));
}

// The rank's own error names its step already.
ChildError exited(const RankProcess& rank, std::string_view last_line, std::string_view hint) {
  const bool printed_its_error =
      is_signal_exit_code(rank.exit_code()) || last_line.find("error: ") != std::string_view::npos;
  return ChildError::of(
      rank.exit_code(), printed_its_error ? fmt::format("rank {}", rank.rank()) : name_of(rank),
      "exit code 0", fmt::format("{}{}", rank.exit_code(), quoted_last_line(last_line)), hint);
}

bool has_events(const pollfd& watched) { return watched.revents != 0; }

}  // namespace

Supervisor::Supervisor(std::deque<RankProcess>& ranks, const SignalGuard& signals,
                       const SupervisorOptions& options)
    : ranks_(ranks),
      signals_(signals),
      options_(options),
      relay_(options.stderr_fd, static_cast<int>(ranks.size())) {}

void Supervisor::wait_for_all() {
  while (anyone_runs() && !gave_up_) {
    wait_for_events();
    on_failures();
    on_deadline();
  }
  constexpr std::chrono::seconds kForABusyReader{5};
  relay_.flush(Clock::now() + kForABusyReader);
}

void Supervisor::wait_for_events() {
  const bool has_due = relay_.has_due(Clock::now());
  std::vector<pollfd> watched;  // poll skips entries whose descriptor is negative
  watched.push_back({signals_.fd(), POLLIN, 0});
  watched.push_back({has_due ? relay_.sink() : -1, POLLOUT, 0});
  for (const auto& rank : ranks_) {
    const bool is_full = relay_.of(rank.rank()).is_full();
    watched.push_back({rank.ended_fd(), POLLIN, 0});
    watched.push_back({is_full ? -1 : rank.errors_fd(), POLLIN, 0});
  }
  if (::poll(watched.data(), watched.size(), milliseconds_to_wait()) <= 0) return;
  if (has_events(watched[0])) on_signal();
  if (has_events(watched[1])) relay_.write_piece(Clock::now());
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (has_events(watched[2 * i + 3])) read_errors(ranks_[i]);
    if (has_events(watched[2 * i + 2])) on_rank_ended(ranks_[i]);
  }
}

int Supervisor::milliseconds_to_wait() const {
  constexpr int kForEver = -1;
  auto wake = deadline_;
  const auto now = Clock::now();
  const auto due = relay_.has_due(now) ? std::nullopt : relay_.due_at();
  if (due && (!wake || *due < *wake)) wake = due;
  if (!wake) return kForEver;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*wake - now).count();
  constexpr std::int64_t kHour = 3'600'000;
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, kHour));
}

void Supervisor::read_errors(RankProcess& rank) {
  std::array<char, 65536> text{};
  const ssize_t count = ::read(rank.errors_fd(), text.data(), text.size());
  if (count > 0) {
    relay_.of(rank.rank()).append({text.data(), static_cast<std::size_t>(count)}, Clock::now());
  } else if (count == 0) {
    rank.close_errors();
  }
}

void Supervisor::on_signal() {
  const int signal = signals_.next();
  if (signal == 0) return;
  if (signal_ != 0) {
    if (Clock::now() - signal_at_ >= kSignalEcho) kill_all();
  } else {
    signal_ = signal;
    signal_at_ = Clock::now();
    end_all(signal);
  }
}

// What it wrote before its end is in the pipe. More could only come from a process that left its
// group, so nobody waits for that.
void Supervisor::on_rank_ended(RankProcess& rank) {
  if (!rank.reap()) return;
  read_errors(rank);
  rank.close_errors();
  relay_.of(rank.rank()).finish();
  if (failed(rank) && phase_ <= Phase::kWaitingForCause) failures_.push_back(&rank);
}

void Supervisor::on_failures() {
  if (failures_.empty() || phase_ > Phase::kWaitingForCause) return;
  if (!is_consequence(*cause())) {
    end_all(SIGTERM);
  } else if (phase_ == Phase::kAllWell) {
    enter(Phase::kWaitingForCause, options_.grace);
  }
}

void Supervisor::on_deadline() {
  if (!deadline_ || Clock::now() < *deadline_) return;
  if (phase_ == Phase::kWaitingForCause) {
    hung_ = still_running();
    end_all(SIGTERM);
  } else if (phase_ == Phase::kEnding) {
    survived_sigterm_ = still_running();
    kill_all();
  } else {
    gave_up_ = true;
  }
}

// A stopped process takes its signals when it goes on.
void Supervisor::end_all(int signal) {
  for (const auto& rank : ranks_) {
    rank.send(signal);
    rank.send(SIGCONT);
  }
  if (phase_ < Phase::kEnding) enter(Phase::kEnding, options_.grace);
}

void Supervisor::kill_all() {
  for (const auto& rank : ranks_) rank.send(SIGKILL);
  enter(Phase::kKilling, kForTheKernel);
}

void Supervisor::enter(Phase phase, std::chrono::milliseconds time) {
  phase_ = phase;
  deadline_ = Clock::now() + time;
}

bool Supervisor::anyone_runs() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const auto& rank) { return rank.is_running(); });
}

std::vector<std::string> Supervisor::still_running() const {
  std::vector<std::string> running;
  for (const auto& rank : ranks_) {
    if (rank.is_running()) running.push_back(described(rank));
  }
  return running;
}

const RankProcess* Supervisor::cause() const {
  if (failures_.empty()) return nullptr;
  const auto found = std::find_if_not(failures_.begin(), failures_.end(),
                                      [](const auto* rank) { return is_consequence(*rank); });
  return found == failures_.end() ? failures_.front() : *found;
}

std::string Supervisor::hint() const {
  if (!hung_.empty()) {
    return fmt::format("{} hung; when it hangs again, see where: gdb -p <process id>",
                       fmt::join(hung_, ", "));
  }
  if (!survived_sigterm_.empty()) {
    return fmt::format("{} ignored SIGTERM and had to be killed",
                       fmt::join(survived_sigterm_, ", "));
  }
  return "";
}

void Supervisor::throw_failure() const {
  const RankProcess* rank = cause();
  if (rank == nullptr) return;
  const std::string& last_line = relay_.of(rank->rank()).last_line();
  if (rank->signal() != 0) throw killed(*rank, last_line);
  throw exited(*rank, last_line, hint());
}

}  // namespace ladder
