// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>

#include "ladder/core/unique_fd.h"

namespace ladder {

// While it lives, signals that ask this process to end do not end it: they can be read.
//
// SIGINT, SIGTERM, SIGHUP and SIGQUIT wait in fd(), except those that are ignored (as nohup and
// shell scripts have it): these stay ignored. SIGPIPE is ignored, so that a closed terminal is an
// error of write(2), and children are not reaped behind our back (SIGCHLD). The destructor
// restores all; a signal that nobody read is delivered then.
//
// One at a time, in a process with one thread.
class SignalGuard {
 public:
  SignalGuard();
  ~SignalGuard();
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;

  // Readable (poll) when a signal waits. Blocks nobody.
  int fd() const { return waiting_.get(); }
  // The signal that came first, 0 if none.
  int next() const;

  // In a forked child: the state after exec. What was ignored before stays ignored, handlers
  // become defaults, nothing is blocked.
  void restore_in_child();

  // Ends this process by `signal`, so that whoever waits for it sees what happened.
  [[noreturn]] static void reraise(int signal);

 private:
  void restore_dispositions() const;

  sigset_t mask_before_{};
  struct sigaction pipe_before_{};
  struct sigaction child_before_{};
  UniqueFd waiting_;
};

}  // namespace ladder
