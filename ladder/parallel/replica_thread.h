// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <stop_token>
#include <thread>

namespace ladder {

// A thread that waits for work: one task at a time, run in the order given.
//
// Kept from step to step, because starting a thread costs more than a small task, and because
// OpenMP builds a team of its own for each new one. The destructor waits for the task in hand.
class ReplicaThread {
 public:
  ReplicaThread();

  // Runs `task` on the thread. The future gets its end, or what it threw. One caller at a time,
  // and not before the last task is done.
  std::future<void> start(std::function<void()> task);

 private:
  void work(const std::stop_token& stop);

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::packaged_task<void()> task_;  // valid while there is one to do
  std::jthread thread_;              // last: it uses what stands above
};

}  // namespace ladder
