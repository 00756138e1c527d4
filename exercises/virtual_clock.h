// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace ladder::exercises {

// What a message between two ranks takes: alpha, and its bytes ÷ beta.
struct Link {
  double alpha = 0;  // seconds
  double beta = 0;   // bytes per second
};

// The time of one rank. Only its calls move it, so a busy machine changes nothing.
class VirtualClock {
 public:
  double now() const { return now_; }

  // A computation declares what it takes.
  void compute(double seconds) { now_ += seconds; }
  void wait_until(double time) { now_ = std::max(now_, time); }

  // Starts a ring all-reduce over `ranks` with equal clocks: 2 (N - 1) messages of bytes ÷ N, after
  // those of earlier calls, because they share a link. Returns the time of its end.
  double start_all_reduce(std::int64_t bytes, int ranks, const Link& link) {
    const double message = link.alpha + static_cast<double>(bytes) / ranks / link.beta;
    free_ = std::max(free_, now_) + 2 * (ranks - 1) * message;
    return free_;
  }

 private:
  double now_ = 0;
  double free_ = 0;  // when the link is
};

}  // namespace ladder::exercises
