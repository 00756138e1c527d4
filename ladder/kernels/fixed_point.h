// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

namespace ladder {

// Sums of floats as sums of integers, so that neither the order of the addends nor the way in which
// they are grouped changes the result: integer addition is associative, and float addition is not.
//
// A float becomes the nearest multiple of `step`, as an int64. Addends larger than `limit` do not
// count as numbers: 2^50 steps are the most that one of them may have, so 4,096 addends fit.
struct FixedPoint {
  double step;  // a power of two
  float limit;  // at most step × 2^50

  static constexpr std::int64_t kMaxAddends = 4096;
};

// Multiples of 2^-44, up to 64: for gradients of a loss that is a mean. A float of 0.001 keeps all
// of its bits.
inline constexpr FixedPoint kFixedPointGradient{.step = 0x1p-44, .limit = 0x1p6F};

// Multiples of 2^-30, up to a million: for statistics of BatchNorm.
inline constexpr FixedPoint kFixedPointStatistic{.step = 0x1p-30, .limit = 0x1p20F};

// sum[i] += the integers of all numbers[k][i] ÷ divisor, in steps of `form`; `sum` counts from
// zero if `fresh`. Returns whether all quotients were finite and within the limit; if not, the sum
// is meaningless.
bool add_in_fixed_point(const FixedPoint& form, std::span<const float* const> numbers,
                        double divisor, std::int64_t count, bool fresh, std::int64_t* sum);

// The floats nearest to a sum in float64 times `factor`.
void from_fixed_point(const FixedPoint& form, const std::int64_t* sum, double factor,
                      std::int64_t count, float* result);

}  // namespace ladder
