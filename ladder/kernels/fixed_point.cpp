// SPDX-License-Identifier: Apache-2.0
#include "ladder/kernels/fixed_point.h"

#include <bit>
#include <cmath>
#include <cstddef>

#include "ladder/core/simd.h"

namespace ladder {
namespace {

// A double of this size counts in ones: its last bits are an integer. So the bits of x + kOnes less
// those of kOnes are x as an integer, rounded, for |x| <= 2^51. A conversion of eight at a time
// would need AVX-512.
constexpr double kOnes = 0x1.8p52;

// `steps`: of a number 1. The addends' shares of kOnes are taken off together.
LADDER_SIMD_V4
bool add_rounded(const float* const* numbers, std::size_t addends, double steps, float limit,
                 std::int64_t count, const std::int64_t* before, std::int64_t* sum) {
  const auto offset = static_cast<std::int64_t>(addends * std::bit_cast<std::uint64_t>(kOnes));
  int outside = 0;
  for (std::int64_t i = 0; i < count; ++i) sum[i] = (before == nullptr ? 0 : before[i]) - offset;
  for (std::size_t k = 0; k < addends; ++k) {
    const float* const from = numbers[k];
    for (std::int64_t i = 0; i < count; ++i) {
      outside |= static_cast<int>(!(__builtin_fabsf(from[i]) <= limit));
      sum[i] += std::bit_cast<std::int64_t>(from[i] * steps + kOnes);
    }
  }
  return outside == 0;
}

LADDER_SIMD_V4
void scale_to_float(const std::int64_t* sum, double factor, std::int64_t count, float* result) {
  for (std::int64_t i = 0; i < count; ++i) {
    result[i] = static_cast<float>(static_cast<double>(sum[i]) * factor);
  }
}

}  // namespace

bool add_in_fixed_point(const FixedPoint& form, std::span<const float* const> numbers,
                        double divisor, std::int64_t count, bool fresh, std::int64_t* sum) {
  const auto limit = static_cast<float>(form.limit * divisor);
  return add_rounded(numbers.data(), numbers.size(), 1.0 / (form.step * divisor), limit, count,
                     fresh ? nullptr : sum, sum);
}

void from_fixed_point(const FixedPoint& form, const std::int64_t* sum, double factor,
                      std::int64_t count, float* result) {
  scale_to_float(sum, form.step * factor, count, result);
}

}  // namespace ladder
