// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/replica_thread.h"

#include <utility>

namespace ladder {

ReplicaThread::ReplicaThread() : thread_([this](const std::stop_token& stop) { work(stop); }) {}

std::future<void> ReplicaThread::start(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  task_ = std::packaged_task<void()>(std::move(task));
  changed_.notify_all();
  return task_.get_future();
}

void ReplicaThread::work(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return task_.valid(); })) {
    auto task = std::exchange(task_, {});
    lock.unlock();
    task();
    lock.lock();
  }
}

}  // namespace ladder
