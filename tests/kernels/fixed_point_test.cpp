// SPDX-License-Identifier: Apache-2.0
// The expected sums are made with integers of 128 bits. The processor chooses the version of the
// loops (AVX-512, AVX2, plain) when the program starts, and no variable overrides it, so these
// tests see the one of this machine.
#include "ladder/kernels/fixed_point.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace ladder {
namespace {

__extension__ using Int128 = __int128;
using Row = std::vector<float>;  // one addend of each sum
using Sums = std::vector<std::int64_t>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// number ÷ 2^exponent as an integer, ties to even. A float is mantissa × 2^shift.
Int128 steps_of(float number, int exponent) {
  int shift = 0;
  const auto mantissa = static_cast<std::int64_t>(std::ldexp(std::frexp(number, &shift), 24));
  shift -= 24 + exponent;
  if (shift >= 0) return static_cast<Int128>(mantissa) << shift;
  if (shift < -26) return 0;
  const std::int64_t below = mantissa >> -shift;  // rounded down
  const std::int64_t rest = mantissa - (below << -shift);
  const std::int64_t half = std::int64_t{1} << (-shift - 1);
  return below + (rest > half || (rest == half && below % 2 != 0) ? 1 : 0);
}

// Of any sign and size up to the limit, many below one step.
std::vector<Row> random_rows(std::size_t rows, std::size_t count, const FixedPoint& form,
                             double divisor) {
  std::mt19937 generator(7);
  std::uniform_real_distribution<float> mantissa(-1.0F, 1.0F);
  std::uniform_int_distribution<int> exponent(-60, 0);
  std::vector<Row> result(rows, Row(count));
  for (auto& row : result) {
    for (auto& number : row) {
      number = std::ldexp(mantissa(generator), exponent(generator)) *
               static_cast<float>(form.limit * divisor);
    }
  }
  return result;
}

// Adds the rows `per_call` at a time to `sums`; those of the first call replace what is there.
bool add_rows(const FixedPoint& form, const std::vector<Row>& rows, double divisor,
              std::size_t per_call, Sums& sums) {
  bool good = true;
  for (std::size_t begin = 0; begin < rows.size(); begin += per_call) {
    std::vector<const float*> addresses;
    for (std::size_t k = begin; k < std::min(rows.size(), begin + per_call); ++k) {
      addresses.push_back(rows[k].data());
    }
    good = add_in_fixed_point(form, addresses, divisor, std::ssize(sums), /*fresh=*/begin == 0,
                              sums.data()) &&
           good;
  }
  return good;
}

void expect_sums_of_integers(const FixedPoint& form, int divisor_exponent, std::size_t count) {
  const double divisor = std::ldexp(1.0, divisor_exponent);
  auto rows = random_rows(11, count, form, divisor);
  Sums expected(count);
  for (std::size_t i = 0; i < count; ++i) {
    Int128 sum = 0;
    for (const auto& row : rows) {
      sum += steps_of(row[i], std::ilogb(form.step) + divisor_exponent);
    }
    expected[i] = static_cast<std::int64_t>(sum);
  }
  std::mt19937 generator(9);
  for (const std::size_t per_call : {11U, 1U, 4U}) {
    Sums sums(count, 12345);  // which the first call ignores
    EXPECT_TRUE(add_rows(form, rows, divisor, per_call, sums));
    EXPECT_EQ(sums, expected) << count << " numbers, " << per_call << " at a time";
    std::shuffle(rows.begin(), rows.end(), generator);
  }
}

TEST(FixedPoint, SumsAreThoseOfIntegersInAnyOrderAndGrouping) {
  for (const std::size_t count : {1U, 2U, 3U, 5U, 7U, 8U, 9U, 15U, 16U, 17U, 31U, 33U, 1001U}) {
    expect_sums_of_integers(kFixedPointGradient, 0, count);
    expect_sums_of_integers(kFixedPointStatistic, 0, count);
  }
}

TEST(FixedPoint, DividesByTheScaleOfTheLoss) {
  for (const int exponent : {16, 1, -3}) expect_sums_of_integers(kFixedPointGradient, exponent, 33);
}

TEST(FixedPoint, RoundsTiesToEven) {
  const auto step = static_cast<float>(kFixedPointGradient.step);
  const Row numbers = {0.5F * step, 1.5F * step,  2.5F * step,  -0.5F * step,
                       0.6F * step, -1.5F * step, -2.5F * step, 0.0F};
  Sums sums(numbers.size());
  EXPECT_TRUE(add_rows(kFixedPointGradient, {numbers}, 1.0, 1, sums));
  EXPECT_EQ(sums, (Sums{0, 2, 2, 0, 1, -2, -2, 0}));
}

TEST(FixedPoint, AcceptsTheLimitAndReportsWhatIsBeyond) {
  for (const auto& form : {kFixedPointGradient, kFixedPointStatistic}) {
    for (const double divisor : {1.0, 65536.0}) {
      const float limit = form.limit * static_cast<float>(divisor);
      const auto is_accepted = [&](float number, std::size_t place) {
        std::vector<Row> rows(3, Row(37, 1.0F));
        rows[1][place] = number;
        Sums sums(37);
        return add_rows(form, rows, divisor, 3, sums);
      };
      for (const std::size_t place : {0U, 17U, 36U}) {
        EXPECT_TRUE(is_accepted(limit, place) && is_accepted(-limit, place));
        for (const float bad : {std::nextafter(limit, kInfinity), -std::nextafter(limit, kInfinity),
                                kInfinity, -kInfinity, kNan, -kNan}) {
          EXPECT_FALSE(is_accepted(bad, place)) << bad << " at " << place;
        }
      }
    }
  }
}

TEST(FixedPoint, HoldsAsManyAddendsOfTheLimitAsItPromises) {
  for (const float sign : {1.0F, -1.0F}) {
    for (const auto& form : {kFixedPointGradient, kFixedPointStatistic}) {
      const std::vector<Row> rows(FixedPoint::kMaxAddends, Row(1, sign * form.limit));
      Sums sums(1);
      EXPECT_TRUE(add_rows(form, rows, 1.0, rows.size(), sums));
      float result = 0.0F;
      from_fixed_point(form, sums.data(), 1.0, 1, &result);
      EXPECT_EQ(result, sign * static_cast<float>(static_cast<double>(form.limit) *
                                                  FixedPoint::kMaxAddends));
    }
  }
}

TEST(FixedPoint, GivesTheFloatsOfSumsTimesAFactor) {
  Sums sums = {0, 1, -1, 3, (std::int64_t{1} << 44) + 1, -(std::int64_t{5} << 44)};
  sums.resize(35, std::int64_t{1} << 43);
  for (const double factor : {1.0, 65536.0, 1.0 / 3.0}) {
    Row result(sums.size(), kNan);
    from_fixed_point(kFixedPointGradient, sums.data(), factor, std::ssize(sums), result.data());
    for (std::size_t i = 0; i < sums.size(); ++i) {
      EXPECT_EQ(result[i], static_cast<float>(static_cast<double>(sums[i]) * (0x1p-44 * factor)));
    }
  }
}

// 0.001 has its last bit above 2^-44.
TEST(FixedPoint, GivesBackASingleFloat) {
  for (const float number : {0.001F, -0.00123456F, 1.0F / 3.0F, 63.99999F, 0x1p-44F}) {
    Sums sums(1);
    EXPECT_TRUE(add_rows(kFixedPointGradient, {{number}}, 1.0, 1, sums));
    float result = 0.0F;
    from_fixed_point(kFixedPointGradient, sums.data(), 1.0, 1, &result);
    EXPECT_EQ(result, number);
  }
}

}  // namespace
}  // namespace ladder
