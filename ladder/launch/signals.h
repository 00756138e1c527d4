// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ladder/core/unique_fd.h"

namespace ladder {

// A second signal within this time is an echo of the first: a launcher forwards a signal that the
// scheduler has sent to all.
constexpr std::chrono::milliseconds kSignalEcho{500};

// The exit code that shells report for a program that a signal ended.
constexpr int exit_code_of_signal(int signal) { return 128 + signal; }

// The signals that ask a run to stop: of a terminal, a launcher, a connection that was dropped, and
// of a cluster that warns before the time is up.
constexpr std::array kStopSignals = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

// Whether one of them stopped the program with this exit code.
constexpr bool is_signal_exit_code(int exit_code) {
  return std::ranges::find(kStopSignals, exit_code - exit_code_of_signal(0)) != kStopSignals.end();
}

// Ends a run after a signal, once it has saved its state. Not an Error. call_and_report prints
// `text`, unless it is empty, and returns exit_code_of_signal.
class StoppedBySignal : public std::exception {
 public:
  StoppedBySignal(int signal, std::string text) : signal_(signal), text_(std::move(text)) {}

  int signal() const { return signal_; }  // of kStopSignals
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  int signal_;
  std::string text_;
};

// "SIGTERM: stopped after step 57; saved out/checkpoint-57". `checkpoint`: empty = none was
// written.
std::string stop_line(int signal, std::int64_t step, const std::string& checkpoint);

// Called at the end of a save, with its checkpoint. A StopSignal replaces it, and then it is a
// collective: a slow save may take most of the time that a launcher grants after a signal.
std::function<void(const std::string& checkpoint)>& after_save();

// During its lifetime, signals that would end this process can be read instead.
//
// kStopSignals, SIGQUIT and SIGTSTP are queued in fd(), except those that are ignored, as under
// nohup: these stay ignored. SIGPIPE is ignored, so a write without a reader is an error of
// write(2). SIGCHLD is default, so only this code reaps children. The destructor restores all; a
// signal that was not taken is delivered then.
//
// One object at a time, in a process with one thread.
class SignalGuard {
 public:
  SignalGuard();
  ~SignalGuard();
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;

  // Readable (poll) when a signal is queued.
  int fd() const { return waiting_.get(); }
  // Removes and returns the first queued signal; 0 if there is none. Does not block.
  int take() const;

  // In a forked child: the state after exec. Ignored signals stay ignored, SIGPIPE among them;
  // handlers become defaults; no signal is blocked.
  void restore_in_child();

  // Ends this process by `signal`, so its parent sees that signal.
  [[noreturn]] static void reraise(int signal);

 private:
  sigset_t mask_before_{};
  struct sigaction pipe_before_{};
  struct sigaction child_before_{};
  UniqueFd waiting_;
};

// During its lifetime kStopSignals wait: a file that is being written is finished,
// and then the signal ends the process. A second signal of the kind ends it at once. Signals that
// the program ignores or handles stay as they are. One object at a time.
class DeferredSignals {
 public:
  DeferredSignals() {
    struct sigaction remember{};
    remember.sa_handler = [](int signal) { pending() = signal; };
    remember.sa_flags = static_cast<int>(SA_RESETHAND | SA_ONSTACK | SA_RESTART);
    pending() = 0;
    for (std::size_t i = 0; i < kStopSignals.size(); ++i) {
      ::sigaction(kStopSignals[i], nullptr, &before_[i]);
      if (before_[i].sa_handler == SIG_DFL) ::sigaction(kStopSignals[i], &remember, nullptr);
    }
  }
  ~DeferredSignals() {
    for (std::size_t i = 0; i < kStopSignals.size(); ++i) {
      if (before_[i].sa_handler == SIG_DFL) ::sigaction(kStopSignals[i], &before_[i], nullptr);
    }
    if (pending() != 0) ::raise(pending());
  }
  DeferredSignals(const DeferredSignals&) = delete;
  DeferredSignals& operator=(const DeferredSignals&) = delete;

 private:
  static volatile std::sig_atomic_t& pending() {
    static volatile std::sig_atomic_t signal = 0;
    return signal;
  }

  std::array<struct sigaction, kStopSignals.size()> before_{};
};

// A stack for the signal handlers of the calling thread, for its lifetime; see sigaltstack(2).
//
// A handler in a process that uses LibTorch needs one, and SA_ONSTACK in its sigaction: the matrix
// products that oneDNN generates keep pointers to their data in the stack pointer, so that the
// frame of a handler on the ordinary stack overwrites weights and the heap. The kernel gives a
// signal for the process to its main thread, unless that blocks it.
//
// Leaves a stack that the thread already has in place.
class SignalStack {
 public:
  SignalStack() : memory_(kBytes) {
    const stack_t own{.ss_sp = memory_.data(), .ss_flags = 0, .ss_size = memory_.size()};
    ::sigaltstack(nullptr, &before_);
    if ((before_.ss_flags & SS_DISABLE) != 0) ::sigaltstack(&own, nullptr);
  }
  ~SignalStack() {
    if ((before_.ss_flags & SS_DISABLE) != 0) ::sigaltstack(&before_, nullptr);
  }
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  static constexpr std::size_t kBytes{256 * 1024};  // the registers of AVX-512 and AMX need 12 KiB

  std::vector<std::byte> memory_;
  stack_t before_{};
};

}  // namespace ladder
