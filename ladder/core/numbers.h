// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>

namespace ladder {

// How many parts of size `by` hold `count` things: 7 of 3 are 3. Both >= 0, `by` > 0.
constexpr std::int64_t ceil_div(std::int64_t count, std::int64_t by) {
  return (count + by - 1) / by;
}

// "1,199,882". `number` >= 0.
inline std::string grouped_digits(std::int64_t number) {
  if (number < 1000) return fmt::format("{}", number);
  return fmt::format("{},{:03}", grouped_digits(number / 1000), number % 1000);
}

}  // namespace ladder
