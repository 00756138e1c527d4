// SPDX-License-Identifier: Apache-2.0
#pragma once

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

}  // namespace ladder
