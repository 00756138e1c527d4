// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>

#include "ladder/core/unique_fd.h"

namespace ladder {

// During its lifetime, signals that would end this process can be read instead.
//
// SIGINT, SIGTERM, SIGHUP and SIGQUIT are queued in fd(), except those that are ignored, as under
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

}  // namespace ladder
