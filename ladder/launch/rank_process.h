// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "ladder/core/unique_fd.h"
#include "ladder/launch/rank_status.h"

namespace ladder {

// One forked rank, seen from the process that started it.
//
// It is held by its pidfd, a descriptor that becomes readable when the process ends, and by its
// process group, which includes the processes that the rank starts. The destructor kills and reaps
// a running rank, so an exception leaves no process behind.
class RankProcess {
 public:
  explicit RankProcess(int rank) : rank_(rank) {}
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  // Forks. `body` runs in the child and does not return; its standard error is `stderr_fd`, its
  // rank_status() is shared with this process. The child dies with its parent.
  // Throws SystemError without processes, descriptors or memory.
  void start(int stderr_fd, const std::function<void()>& body);

  int rank() const { return rank_; }
  bool is_running() const { return pid_ > 0; }
  int ended_fd() const { return ended_.get(); }  // readable once the rank has ended

  // Sends a signal to the rank and its process group.
  void send(int signal) const;
  // Waits at most `limit` for the end and reaps the rank. Kills the rest of its process group.
  // False if the rank still runs.
  bool reap(std::chrono::milliseconds limit = std::chrono::milliseconds(0));
  // The kernel's letter for the process state: R, S, D, or T for stopped; '?' if unknown.
  char state() const;

  // From the rank's status, also after its end.
  std::int64_t step() const { return status_ == nullptr ? 0 : status_->step.load(); }
  std::string last_line() const { return status_ == nullptr ? "" : status_->last_line.data(); }
  // The checkpoint that it is saving, or was when it ended; "" if none.
  std::string saving() const;
  // Whether it runs and saves a checkpoint, for at most `longest` milliseconds so far.
  bool saves(std::chrono::milliseconds longest) const;

  // After reap(): the signal that ended it (0 if none), and its exit code.
  int signal() const { return signal_; }
  int exit_code() const { return exit_code_; }

  // In children forked later: closes this rank's descriptor.
  void close_descriptors() { ended_.reset(); }

 private:
  int rank_;
  RankStatus* status_ = nullptr;  // in memory shared with the rank
  pid_t pid_ = -1;
  UniqueFd ended_;
  int signal_ = 0;
  int exit_code_ = 0;
};

}  // namespace ladder
