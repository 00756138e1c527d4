// SPDX-License-Identifier: Apache-2.0
#include "bench/links/spans.h"

#include <torch/types.h>

#include <algorithm>
#include <utility>

namespace ladder::bench {
namespace {

// Microseconds are enough.
double milliseconds(Spans::Clock::duration duration) {
  const auto whole = std::chrono::duration_cast<std::chrono::microseconds>(duration);
  return static_cast<double>(whole.count()) / 1e3;
}

}  // namespace

void Spans::begin_step() {
  const std::lock_guard lock(mutex_);
  spans_.clear();
  sent_.clear();
  begin_ = Clock::now();
}

void Spans::add(const std::string& lane, Clock::time_point begin, Clock::time_point end,
                std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  spans_.push_back({.lane = lane, .begin = begin, .end = end, .bytes = bytes});
}

nlohmann::json Spans::step() const {
  const std::lock_guard lock(mutex_);
  auto rows = nlohmann::json::array();
  for (const auto& span : spans_) {
    rows.push_back({span.lane, milliseconds(span.begin - begin_),
                    milliseconds(span.end - span.begin), span.bytes});
  }
  return rows;
}

CommHook Spans::watched(CommHook hook) {
  auto encode = [this, encode = std::move(hook.encode)](const torch::Tensor& bucket, int world) {
    auto sum = encode(bucket, world);
    const std::lock_guard lock(mutex_);
    sent_.push_back({.data = sum.const_data_ptr(), .begin = Clock::now()});
    return sum;
  };
  auto decode = [this, decode = std::move(hook.decode)](const torch::Tensor& sum) {
    const auto end = Clock::now();
    {
      const std::lock_guard lock(mutex_);
      const auto sent = std::ranges::find(sent_, sum.const_data_ptr(), &Sent::data);
      if (sent != sent_.end()) {
        spans_.push_back({.lane = "wire",
                          .begin = sent->begin,
                          .end = end,
                          .bytes = static_cast<std::int64_t>(sum.nbytes())});
        sent_.erase(sent);
      }
    }
    return decode(sum);
  };
  return {.encode = std::move(encode), .decode = std::move(decode)};
}

}  // namespace ladder::bench
