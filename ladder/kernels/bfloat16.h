// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace ladder::kernels {

// The bits of a bfloat16, the upper half of a float. Loops over c10::BFloat16 are not vectorised.
using Bfloat16Bits = std::uint16_t;

[[gnu::always_inline]] inline float as_float(float number) { return number; }
[[gnu::always_inline]] inline float as_float(Bfloat16Bits bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// Equals: c10::BFloat16(number), bit for bit; but NaN keeps its sign and payload, which must fit
// into a bfloat16, because a larger one would overflow: see coefficient().
template <typename T>
[[gnu::always_inline]] inline T rounded(float number) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return number;
  } else {  // to the nearest, ties to even
    const auto bits = std::bit_cast<std::uint32_t>(number);
    return static_cast<T>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
  }
}

// A number for a loop that rounds its results; NaN loses its payload. So a NaN among the results
// has a payload that fits into a bfloat16, and rounded() needs no test.
inline float coefficient(double number) {
  return std::isnan(number) ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(number);
}

}  // namespace ladder::kernels
