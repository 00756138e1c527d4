// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/saved_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "ladder/checkpoint/quoted.h"
#include "ladder/core/error.h"

namespace ladder {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kParams = "params";

std::string text_of(const Json& value) {
  return in_quotes(value.dump(-1, ' ', true, Json::error_handler_t::replace));
}

// JSON cannot write other numbers, but a program can put them there.
bool is_finite_number(const Json& value) {
  return value.is_number() && std::isfinite(value.get<double>());
}

}  // namespace

CheckedOption non_negative(std::string_view name, double value) {
  return {name, value, value >= 0.0, "a value >= 0"};
}

CheckedOption from_zero_below_one(std::string_view name, double value) {
  return {name, value, value >= 0.0 && value < 1.0, "0 <= beta < 1"};
}

void check_options(std::string_view optimizer, const std::vector<CheckedOption>& ranges) {
  for (const auto& range : ranges) {
    if (range.inside) continue;
    throw UsageError::out_of_range(fmt::format("{} {}", optimizer, range.name), range.value,
                                   range.expected);
  }
}

SavedOptions::SavedOptions(const Json& group, std::size_t index, std::string_view origin)
    : group_(group), index_(index), origin_(origin) {
  if (!group.is_object()) refuse("an object with options", text_of(group));
}

void SavedOptions::expect_names(std::initializer_list<std::string_view> names) const {
  for (const auto& [name, value] : group_.items()) {
    const bool known =
        name == kParams || std::find(names.begin(), names.end(), name) != names.end();
    if (!known) refuse(fmt::format("only {} and params", fmt::join(names, ", ")), in_quotes(name));
  }
  for (const auto name : names) at(name);
}

void SavedOptions::expect_params(const std::vector<std::string>& names) const {
  const auto& params = at(kParams);
  if (!params.is_array()) refuse("names under params", text_of(params));
  for (std::size_t i = 0; i < std::max(names.size(), params.size()); ++i) {
    const auto expected = i < names.size() ? names[i] : "nothing more";
    if (i >= params.size()) refuse(fmt::format("{} at {} of params", expected, i), "nothing more");
    const bool equal = i < names.size() && params[i].is_string() && params[i] == expected;
    if (!equal) refuse(fmt::format("{} at {} of params", expected, i), text_of(params[i]));
  }
}

double SavedOptions::number(std::string_view name) const {
  const auto& value = at(name);
  if (!is_finite_number(value)) refuse(fmt::format("a number as {}", name), text_of(value));
  return value.get<double>();
}

std::pair<double, double> SavedOptions::two_numbers(std::string_view name) const {
  const auto& value = at(name);
  const bool valid = value.is_array() && value.size() == 2 && is_finite_number(value[0]) &&
                     is_finite_number(value[1]);
  if (!valid) refuse(fmt::format("two numbers as {}", name), text_of(value));
  return {value[0].get<double>(), value[1].get<double>()};
}

bool SavedOptions::yes_or_no(std::string_view name) const {
  const auto& value = at(name);
  if (!value.is_boolean()) refuse(fmt::format("true or false as {}", name), text_of(value));
  return value.get<bool>();
}

void SavedOptions::check(const std::vector<CheckedOption>& ranges) const {
  for (const auto& range : ranges) {
    if (range.inside) continue;
    refuse(fmt::format("{} for {}", range.expected, range.name), fmt::format("{}", range.value));
  }
}

void SavedOptions::refuse(const std::string& expected, const std::string& got) const {
  throw DataError::mismatch(origin_, fmt::format("{} in group {}", expected, index_), got,
                            "is this the state of another optimizer or network?");
}

const Json& SavedOptions::at(std::string_view name) const {
  const auto found = group_.find(name);
  if (found == group_.end()) refuse(std::string(name), "none");
  return *found;
}

}  // namespace ladder
