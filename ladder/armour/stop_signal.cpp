// SPDX-License-Identifier: Apache-2.0
#include "ladder/armour/stop_signal.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <exception>
#include <string_view>
#include <utility>

#include "ladder/core/clock.h"
#include "ladder/launch/rank_status.h"
#include "ladder/launch/signals.h"

namespace ladder {
namespace {

constexpr double kSecondsBetween = 0.25;  // between two polls
constexpr std::int64_t kMaxSteps = 1000;

// The first signal and its time, in one word for the handler: milliseconds on the steady clock
// times kSignals, plus the signal; 0 = none yet.
std::atomic<std::int64_t> first = 0;
constexpr std::int64_t kSignals = 256;
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

int first_signal() { return static_cast<int>(first % kSignals); }

std::int64_t milliseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000 + now.tv_nsec / 1'000'000;
}

// Async-signal-safe. The line is one write.
void report_lost_checkpoint() {
  constexpr std::string_view kBefore = "warning: not saved: ";
  constexpr std::string_view kAfter = "; a second signal ended the run, older checkpoints stay\n";
  const auto& status = rank_status();
  if (status.saving_since == 0) return;
  const std::size_t length = ::strnlen(status.saving.data(), status.saving.size());
  std::array<char, 400> line{};
  auto end = std::ranges::copy(kBefore, line.begin()).out;
  end = std::copy_n(status.saving.begin(), length, end);
  end = std::ranges::copy(kAfter, end).out;
  // Nothing is left to do about an error.
  [[maybe_unused]] const auto written =
      ::write(STDERR_FILENO, line.data(), static_cast<std::size_t>(end - line.begin()));
}

// Async-signal-safe.
void on_signal(int signal) {
  const auto now = milliseconds();
  std::int64_t before = 0;
  if (first.compare_exchange_strong(before, now * kSignals + signal)) return;
  if (now - before / kSignals < kSignalEcho.count()) return;
  report_lost_checkpoint();
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void listen_to(int signal, struct sigaction& before) {
  ::sigaction(signal, nullptr, &before);
  if (before.sa_handler == SIG_IGN) return;
  struct sigaction action{};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART | SA_ONSTACK;  // see SignalStack
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

StopSignal::StopSignal(ProcessGroup group)
    : group_(std::move(group)), exceptions_(std::uncaught_exceptions()) {
  first = 0;
  after_save() = [this](const std::string& saved) { stop_after_save(saved); };
  for (std::size_t i = 0; i < kStopSignals.size(); ++i) listen_to(kStopSignals[i], before_[i]);
}

StopSignal::~StopSignal() {
  after_save() = [](const auto&) {};
  for (std::size_t i = 0; i < kStopSignals.size(); ++i) {
    ::sigaction(kStopSignals[i], &before_[i], nullptr);
  }
  const bool is_late = first_signal() != 0 && !answered_;
  if (is_late && std::uncaught_exceptions() == exceptions_) std::raise(first_signal());
}

int StopSignal::poll_all_ranks(bool now) {
  if (!now && current_step() != 0) step_ = current_step();
  const bool polls = --steps_left_ <= 0 || now;
  const int signal = group_.world_size() == 1 ? first_signal() : polls ? poll() : 0;
  answered_ = answered_ || signal != 0;
  return signal;
}

void StopSignal::stop_after_save(const std::string& saved) {
  if (answered_) return;  // that stop makes this save
  const int signal = poll_all_ranks(/*now=*/true);
  if (signal == 0) return;
  throw StoppedBySignal(signal, group_.rank() == 0 ? stop_line(signal, step_, saved) : "");
}

int StopSignal::poll() {
  const double now = steady_seconds();
  const double took = polled_at_ == 0.0 ? 0.0 : now - polled_at_;
  polled_at_ = now;
  const auto signal = static_cast<double>(first_signal());
  auto numbers = torch::tensor({signal, took}, torch::kFloat64);
  group_.all_reduce(numbers, ReduceOp::kMax);
  const auto* of_all = numbers.const_data_ptr<double>();
  const double step_seconds = of_all[1] /  // of the slowest rank
                              static_cast<double>(interval_ - steps_left_);
  const double steps = step_seconds > 0.0 ? std::floor(kSecondsBetween / step_seconds) : 1.0;
  interval_ = static_cast<std::int64_t>(std::clamp(steps, 1.0, static_cast<double>(kMaxSteps)));
  steps_left_ = interval_;
  return static_cast<int>(of_all[0]);
}

void StopObserver::begin_epoch(const EpochStart& /*start*/) {
  if (!stop_) stop_.emplace(group_);
}

Verdict StopObserver::step(const StepEvent& event) {
  return {event.updated ? stop_->poll_all_ranks() : 0};
}

Verdict StopObserver::pause() { return {stop_ ? stop_->poll_all_ranks(/*now=*/true) : 0}; }

Verdict StopObserver::end() {
  const auto verdict = pause();
  if (!verdict) stop_.reset();
  return verdict;
}

}  // namespace ladder
