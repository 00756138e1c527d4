// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace ladder {

// A monotonic clock; only differences are meaningful.

inline double steady_seconds() {
  const auto since_start = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since_start).count();
}

inline std::int64_t steady_milliseconds() {
  using std::chrono::steady_clock, std::chrono::milliseconds;
  return std::chrono::duration_cast<milliseconds>(steady_clock::now().time_since_epoch()).count();
}

// A limit for a wait, in which the time counts that this process ran. It may have been stopped
// (SIGSTOP, a paused container), together with the ranks for which it waits: of the time between
// two calls of passed() at most two slices count. So a wait calls it again and again, with waits of
// at most slice() in between.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kSlice{200};

  explicit Deadline(std::chrono::milliseconds timeout) : timeout_(timeout), left_(timeout) {}

  bool passed(Clock::time_point now = Clock::now()) {
    left_ -= std::min<Clock::duration>(now - seen_, 2 * kSlice);
    seen_ = now;
    return left_.count() <= 0;
  }

  std::chrono::milliseconds slice() const {
    return std::clamp(std::chrono::ceil<std::chrono::milliseconds>(left_),
                      std::chrono::milliseconds(0), kSlice);
  }

  std::chrono::milliseconds timeout() const { return timeout_; }

 private:
  std::chrono::milliseconds timeout_;
  Clock::duration left_;
  Clock::time_point seen_ = Clock::now();
};

}  // namespace ladder
