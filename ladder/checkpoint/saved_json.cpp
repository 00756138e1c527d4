// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/saved_json.h"

#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "ladder/core/error.h"

namespace ladder {
namespace {

constexpr std::uint64_t kLargestCount = std::uint64_t{1} << 62;
constexpr std::size_t kShown = 40;  // characters of a value in a message
constexpr int kDeepest = 16;
constexpr const char* kHint = "the file is damaged: resume from an older checkpoint";

const nlohmann::json* find(const nlohmann::json& state, std::string_view name) {
  if (!state.is_object()) return nullptr;
  const auto found = state.find(name);
  return found == state.end() ? nullptr : &*found;
}

[[noreturn]] void refuse(std::string_view origin, const std::string& expected,
                         const nlohmann::json* got) {
  const std::string text =
      got == nullptr
          ? "none"
          : got->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).substr(0, kShown);
  throw DataError::mismatch(origin, expected, text, kHint);
}

}  // namespace

nlohmann::json parse_saved_json(std::string_view text, std::string_view origin) {
  bool too_deep = false;
  const auto watch = [&](int depth, nlohmann::json::parse_event_t /*event*/, nlohmann::json&) {
    too_deep = too_deep || depth > kDeepest;
    return !too_deep;
  };
  auto json = nlohmann::json::parse(text, watch, /*allow_exceptions=*/false);
  if (too_deep || json.is_discarded()) {
    throw DataError::mismatch(origin, fmt::format("JSON of at most {} levels", kDeepest),
                              too_deep ? "more" : "something else", kHint);
  }
  return json;
}

nlohmann::json saved_value(const nlohmann::json& state, std::string_view name) {
  const auto* const value = find(state, name);
  return value == nullptr ? nlohmann::json() : *value;
}

std::int64_t saved_count(const nlohmann::json& state, std::string_view name,
                         std::string_view origin) {
  const auto* const value = find(state, name);
  if (value != nullptr && value->is_number_unsigned() &&
      value->get<std::uint64_t>() <= kLargestCount) {
    return value->get<std::int64_t>();
  }
  refuse(origin, fmt::format("a whole number as \"{}\"", name), value);
}

double saved_number(const nlohmann::json& state, std::string_view name, std::string_view origin) {
  const auto* const value = find(state, name);
  if (value != nullptr && value->is_number()) {
    const auto number = value->get<double>();
    if (std::isfinite(number) && number >= 0.0) return number;
  }
  refuse(origin, fmt::format("a number >= 0 as \"{}\"", name), value);
}

}  // namespace ladder
