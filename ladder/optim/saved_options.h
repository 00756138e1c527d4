// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ladder {

// For the optimizers of this folder: options that are checked in the same way whether a program
// gives them or a checkpoint does. The first mistake is a UsageError, the second a DataError.

// A number among the options, and whether it lies in its range.
struct CheckedOption {
  std::string_view name;  // Python's
  double value = 0.0;
  bool inside = false;
  std::string_view expected;  // the range in words
};

CheckedOption non_negative(std::string_view name, double value);
CheckedOption from_zero_below_one(std::string_view name, double value);

// Throws UsageError for the first number outside of its range; `optimizer` is the class.
void check_options(std::string_view optimizer, const std::vector<CheckedOption>& ranges);

// The options of one parameter group as they stand in a checkpoint, of which nothing is believed.
// Every member throws DataError, which begins with `origin`, where the group is not of the form
// asked for. Holds references to what it is made from.
class SavedOptions {
 public:
  // `index` counts the groups from 0.
  SavedOptions(const nlohmann::json& group, std::size_t index, std::string_view origin);

  // Refuses a group that has other names than these and "params", or lacks one.
  void expect_names(std::initializer_list<std::string_view> names) const;

  // Refuses a group whose "params" are other names, or the same in another order.
  void expect_params(const std::vector<std::string>& names) const;

  double number(std::string_view name) const;  // finite
  std::pair<double, double> two_numbers(std::string_view name) const;
  bool yes_or_no(std::string_view name) const;

  void check(const std::vector<CheckedOption>& ranges) const;

  // `expected` is followed by " in group 0".
  [[noreturn]] void refuse(const std::string& expected, const std::string& got) const;

 private:
  const nlohmann::json& at(std::string_view name) const;

  const nlohmann::json& group_;
  std::size_t index_;
  std::string_view origin_;
};

}  // namespace ladder
