// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/saved_schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "ladder/checkpoint/quoted.h"
#include "ladder/core/error.h"

namespace ladder {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool is_finite_number(const nlohmann::json& value) {
  return value.is_number() && std::isfinite(value.get<double>());
}

std::string text_of(const nlohmann::json& value) {
  return in_quotes(value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
}

}  // namespace

nlohmann::json saved_number_or_infinity(double value) {
  if (!std::isinf(value)) return value;
  return value > 0.0 ? "inf" : "-inf";
}

SavedSchedule::SavedSchedule(const nlohmann::json& state, std::string_view origin)
    : state_(state), origin_(origin) {
  if (!state.is_object()) refuse("an object", text_of(state));
}

void SavedSchedule::expect_names(const std::vector<std::string>& names) const {
  for (const auto& [name, value] : state_.items()) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    refuse(fmt::format("only {} and {}", fmt::join(names.begin(), names.end() - 1, ", "),
                       names.back()),
           in_quotes(name));
  }
}

std::int64_t SavedSchedule::count(std::string_view name) const {
  const auto& value = at(name);
  const auto count = value.is_number_integer() ? value.get<std::int64_t>() : -1;
  if (count < 0 || count == std::numeric_limits<std::int64_t>::max()) {
    refuse(fmt::format("a count as {}", name), text_of(value));
  }
  return count;
}

std::vector<double> SavedSchedule::rates(std::string_view name, std::size_t groups) const {
  const auto& values = at(name);
  if (!values.is_array() || values.size() != groups ||
      !std::all_of(values.begin(), values.end(), is_finite_number)) {
    refuse(fmt::format("{} numbers, one a parameter group, as {}", groups, name), text_of(values));
  }
  return values.get<std::vector<double>>();
}

double SavedSchedule::number_or_infinity(std::string_view name) const {
  const auto& value = at(name);
  if (value == "inf") return kInfinity;
  if (value == "-inf") return -kInfinity;
  if (!is_finite_number(value)) {
    refuse(fmt::format(R"(a number, "inf" or "-inf" as {})", name), text_of(value));
  }
  return value.get<double>();
}

const nlohmann::json& SavedSchedule::at(std::string_view name) const {
  const auto found = state_.find(name);
  if (found == state_.end()) refuse(std::string(name), "none");
  return *found;
}

void SavedSchedule::refuse(const std::string& expected, const std::string& got) const {
  throw DataError::mismatch(origin_, expected, got, "it must come from LrScheduler::state_dict");
}

}  // namespace ladder
