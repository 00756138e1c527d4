// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ladder/parallel/comm_hook.h"

namespace ladder::bench {

// What ran when in one training step: spans on lanes, in milliseconds since begin_step().
//
// Spans of buckets come from a CommHook: from the hand-over of a bucket to the process group until
// its sum arrives, on a thread of that group.
class Spans {
 public:
  using Clock = std::chrono::steady_clock;

  void begin_step();
  void add(const std::string& lane, Clock::time_point begin, Clock::time_point end,
           std::int64_t bytes = 0);

  // The step so far: [lane, begin, length, bytes] for each span.
  nlohmann::json step() const;

  // `hook`, with a span on the lane "wire" for each bucket. This object must outlive it.
  CommHook watched(CommHook hook);

 private:
  struct Span {
    std::string lane;
    Clock::time_point begin;
    Clock::time_point end;
    std::int64_t bytes = 0;
  };
  struct Sent {
    const void* data = nullptr;  // of the tensor to sum, which keeps its memory
    Clock::time_point begin;
  };

  mutable std::mutex mutex_;
  Clock::time_point begin_;
  std::vector<Span> spans_;
  std::vector<Sent> sent_;
};

}  // namespace ladder::bench
