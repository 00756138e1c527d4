// SPDX-License-Identifier: Apache-2.0
#include "ladder/comm/run_together.h"

#include <fmt/core.h>
#include <torch/types.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "ladder/core/clock.h"
#include "ladder/core/error.h"
#include "ladder/launch/lost_ranks.h"

namespace ladder {
namespace {

using std::chrono::milliseconds;

// Of all ranks: the first one of each kind; the number of ranks if there is none.
struct Standing {
  std::int64_t failed = 0;
  std::int64_t stuck = 0;  // made no progress until the deadline
  std::int64_t busy = 0;
};

// What the ranks tell each other while one of them still works.
class Heartbeat {
 public:
  Heartbeat(const ProcessGroup& group, std::string_view operation,
            const RunTogetherOptions& options)
      : group_(group),
        operation_(operation),
        options_(options),
        deadline_(std::max<milliseconds>(options.deadline, group.timeout())),
        started_(steady_milliseconds()),
        thread_([this] { beat(); }) {}
  ~Heartbeat() { join(); }
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // This rank has done its work, or failed. Waits for the others. Throws DistributedError for a
  // rank that is lost or stuck. Returns the first rank that failed, or the number of ranks.
  std::int64_t finish(bool failed) {
    join();
    if (error_) std::rethrow_exception(error_);
    const std::int64_t own = group_.rank();
    const std::int64_t none = group_.world_size();
    for (;;) {
      const auto standing = exchange({.failed = failed ? own : none, .stuck = none, .busy = none});
      if (standing.busy == none) return standing.failed;
    }
  }

 private:
  // Runs in the thread.
  void beat() {
    constexpr milliseconds kLongest{250};
    const auto interval = std::min(kLongest, group_.timeout() / 4);
    const std::int64_t own = group_.rank();
    const std::int64_t none = group_.world_size();
    std::unique_lock lock(mutex_);
    while (!ended_.wait_for(lock, interval, [this] { return has_ended_; })) {
      lock.unlock();
      try {
        exchange({.failed = none, .stuck = is_stuck() ? own : none, .busy = own});
      } catch (...) {
        error_ = std::current_exception();
        return;
      }
      lock.lock();
    }
  }

  void join() {
    {
      const std::lock_guard lock(mutex_);
      has_ended_ = true;
    }
    ended_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  bool is_stuck() const {
    const auto progress = std::max(started_, rank_status().progress_at.load());
    return steady_milliseconds() - progress > deadline_.count();
  }

  Standing exchange(const Standing& own) {
    auto numbers = torch::tensor({own.failed, own.stuck, own.busy}, torch::kInt64);
    group_.all_reduce(numbers, ReduceOp::kMin);
    const auto* const first = numbers.const_data_ptr<std::int64_t>();
    const Standing all{.failed = first[0], .stuck = first[1], .busy = first[2]};
    if (all.stuck != group_.world_size()) throw stuck(all.stuck);
    if (all.busy != group_.world_size() && options_.slow != nullptr) {
      const bool is_own = all.busy == group_.rank();
      options_.slow->update(is_own ? "" : fmt::format(", rank {}", all.busy));
    }
    return all;
  }

  DistributedError stuck(std::int64_t rank) const {
    return DistributedError::of(
        fmt::format("{} on rank {} of {}{}", operation_, group_.rank(), group_.world_size(),
                    in_current_step()),
        "", fmt::format("rank {} made no progress for {} s", rank, deadline_.count() / 1000),
        "does its disk answer? Try ls in the folder on its machine");
  }

  const ProcessGroup& group_;
  std::string_view operation_;
  const RunTogetherOptions& options_;
  milliseconds deadline_;
  std::int64_t started_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool has_ended_ = false;
  std::exception_ptr error_;  // of the thread
  std::thread thread_;        // last: it uses the others
};

}  // namespace

SlowLog::SlowLog(std::string activity, const Log& log)
    : activity_(std::move(activity)), log_(log), started_(steady_milliseconds()) {}

void SlowLog::update(std::string_view note) {
  const auto waited = steady_milliseconds() - started_;
  if (waited < next_) return;
  next_ = 2 * waited;
  log_.info(fmt::format("{}: {} s so far{}", activity_, waited / 1000, note));
}

void run_or_fail_together(const ProcessGroup& group, std::string_view operation,
                          const std::function<void()>& run, const RunTogetherOptions& options) {
  std::exception_ptr failure;
  Heartbeat heartbeat(group, operation, options);
  try {
    run();
  } catch (...) {
    failure = std::current_exception();
  }
  std::int64_t first = group.world_size();
  try {
    first = heartbeat.finish(failure != nullptr);
  } catch (const Error&) {
    if (!failure) throw;  // else the failure of this rank is the cause
  }
  if (failure) std::rethrow_exception(failure);
  if (first == group.world_size()) return;
  throw peer_lost(fmt::format("rank {} failed in {}", first, operation));
}

}  // namespace ladder
