// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string_view>

#include "ladder/core/unique_fd.h"

namespace ladder {

// One forked rank, seen from the process that started it.
//
// Held by its pidfd, a descriptor that becomes readable when the process ends, and by its process
// group, which also holds what the rank starts itself. The destructor kills and reaps a rank that
// still runs, so that an exception leaves no process behind.
class RankProcess {
 public:
  explicit RankProcess(int rank) : rank_(rank) {}
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  // Forks; `body` runs in the child and does not come back. The child dies with its parent. Its
  // standard error is `errors` if that is a descriptor, else a pipe to this process.
  // Its current_step() is kept where this process sees it.
  // Throws SystemError if there are too many processes or descriptors, or is no memory.
  void start(int errors, const std::function<void()>& body);

  int rank() const { return rank_; }
  bool is_running() const { return pid_ > 0; }
  int ended_fd() const { return ended_.get(); }    // readable once the rank has ended
  int errors_fd() const { return errors_.get(); }  // its standard error; -1 = not ours, or closed

  // Sends a signal to the rank and to what it started.
  void send(int signal) const;
  // Waits at most `limit` for the end, then takes the status from the kernel. Processes that the
  // rank left in its group are killed. False if it still runs.
  bool reap(std::chrono::milliseconds limit = std::chrono::milliseconds(0));
  // The kernel's letter for what it does: R, S, D, or T for stopped; '?' if unknown.
  char state() const;
  // The step that it is in, or was in when it ended; 0 = in no training.
  std::int64_t step() const;

  // How it ended, after reap(): the signal that did it, else 0; and the exit code.
  int signal() const { return signal_; }
  int exit_code() const { return exit_code_; }

  void close_errors() { errors_.reset(); }
  // For children forked later, which must not hold on to this one.
  void close_descriptors();

 private:
  [[noreturn]] void become_rank(pid_t parent, const std::function<void()>& body);

  int rank_;
  std::atomic<std::int64_t>* step_ = nullptr;  // in memory that the rank has too
  pid_t pid_ = -1;
  UniqueFd ended_;
  UniqueFd errors_;
  int signal_ = 0;
  int exit_code_ = 0;
};

}  // namespace ladder
