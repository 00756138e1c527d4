// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace ladder {

// The state of a scheduler as it stands in a checkpoint, of which nothing is believed. Every member
// throws DataError, which begins with `origin`, where it is not of the form asked for. Holds
// references to what it is made from.
class SavedSchedule {
 public:
  SavedSchedule(const nlohmann::json& state, std::string_view origin);

  // Refuses a state that has other names than these; at least two.
  void expect_names(const std::vector<std::string>& names) const;

  std::int64_t count(std::string_view name) const;  // a whole number >= 0
  // Finite numbers, one a parameter group.
  std::vector<double> rates(std::string_view name, std::size_t groups) const;
  // A finite number, or "inf" or "-inf", which JSON has no numbers for.
  double number_or_infinity(std::string_view name) const;

 private:
  const nlohmann::json& at(std::string_view name) const;
  [[noreturn]] void refuse(const std::string& expected, const std::string& got) const;

  const nlohmann::json& state_;
  std::string_view origin_;
};

// What number_or_infinity takes back.
nlohmann::json saved_number_or_infinity(double value);

}  // namespace ladder
