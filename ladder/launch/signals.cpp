// SPDX-License-Identifier: Apache-2.0
#include "ladder/launch/signals.h"

#include <fmt/core.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>

#include "ladder/core/error.h"

namespace ladder {
namespace {

bool is_ignored(int signal) {
  struct sigaction action{};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

void set_disposition(int signal, void (*handler)(int), struct sigaction* before = nullptr) {
  struct sigaction action{};
  action.sa_handler = handler;
  ::sigaction(signal, &action, before);
}

}  // namespace

std::string stop_line(int signal, std::int64_t step, const std::string& checkpoint) {
  const auto name = fmt::format("SIG{}", ::sigabbrev_np(signal));
  if (checkpoint.empty())
    return fmt::format("{}: stopped after step {}; nothing saved", name, step);
  return fmt::format("{}: stopped after step {}; saved {}; resume from it", name, step, checkpoint);
}

std::function<void(const std::string& checkpoint)>& after_save() {
  static std::function<void(const std::string& checkpoint)> function = [](const auto&) {};
  return function;
}

SignalGuard::SignalGuard() {
  sigset_t signals;
  sigemptyset(&signals);
  const auto queue = [&](int signal) {
    if (!is_ignored(signal)) sigaddset(&signals, signal);
  };
  std::ranges::for_each(kStopSignals, queue);
  std::ranges::for_each(std::array{SIGQUIT, SIGTSTP}, queue);
  waiting_.reset(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!waiting_) throw SystemError::failed("signalfd", "spawn", errno);
  set_disposition(SIGPIPE, SIG_IGN, &pipe_before_);
  set_disposition(SIGCHLD, SIG_DFL, &child_before_);
  ::sigprocmask(SIG_BLOCK, &signals, &mask_before_);
}

SignalGuard::~SignalGuard() {
  ::sigaction(SIGPIPE, &pipe_before_, nullptr);
  ::sigaction(SIGCHLD, &child_before_, nullptr);
  ::sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
}

int SignalGuard::take() const {
  signalfd_siginfo info{};
  return ::read(fd(), &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo) : 0;
}

void SignalGuard::restore_in_child() {
  ::sigaction(SIGCHLD, &child_before_, nullptr);
  waiting_.reset();
  for (int signal = 1; signal < NSIG; ++signal) {
    if (!is_ignored(signal)) set_disposition(signal, SIG_DFL);
  }
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

void SignalGuard::reraise(int signal) {
  set_disposition(signal, SIG_DFL);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, signal);
  ::sigprocmask(SIG_UNBLOCK, &only, nullptr);
  ::raise(signal);
  // Reached in the first process of a container, which no signal ends.
  ::_exit(exit_code_of_signal(signal));
}

}  // namespace ladder
