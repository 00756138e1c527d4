// SPDX-License-Identifier: Apache-2.0
#include "bridges/exported_program/schema.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

namespace ladder::exported {
namespace {

using Json = nlohmann::json;

// The value of a number; `table` begins with that of 1.
template <typename Value>
Value entry_of(const std::vector<Value>& table, const char* what, const Json& json,
               const JsonRefusal& refuse) {
  const auto number = integer_of(json, refuse);
  if (number < 1 || number > std::ssize(table)) refuse(what, json_for_message(json));
  return table[static_cast<std::size_t>(number - 1)];
}

}  // namespace

Union union_of(const Json& json, const JsonRefusal& refuse) {
  if (!json.is_object() || json.size() != 1) {
    refuse("an object with one member", json_for_message(json));
  }
  return {json.begin().key(), json.begin().value()};
}

std::int64_t integer_of(const Json& json, const JsonRefusal& refuse) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  if (!json.is_number_integer() ||
      (json.is_number_unsigned() && json.get<std::uint64_t>() > kMost)) {
    refuse("a whole number", json_for_message(json));
  }
  return json.get<std::int64_t>();
}

double real_of(const Json& json, const JsonRefusal& refuse) {
  using Limits = std::numeric_limits<double>;
  if (json == "Infinity") return Limits::infinity();
  if (json == "-Infinity") return -Limits::infinity();
  if (json == "NaN") return Limits::quiet_NaN();
  if (!json.is_number()) refuse("a number", json_for_message(json));
  return json.get<double>();
}

torch::ScalarType dtype_of(const Json& json, const JsonRefusal& refuse) {
  static const std::vector<torch::ScalarType> table = {
      torch::kByte,        torch::kChar,         torch::kShort,         torch::kInt,
      torch::kLong,        torch::kHalf,         torch::kFloat,         torch::kDouble,
      torch::kComplexHalf, torch::kComplexFloat, torch::kComplexDouble, torch::kBool,
      torch::kBFloat16};
  return entry_of(table, "a dtype of at least 8 bits per number", json, refuse);
}

torch::MemoryFormat memory_format_of(const Json& json, const JsonRefusal& refuse) {
  using enum torch::MemoryFormat;
  static const std::vector<torch::MemoryFormat> table = {Contiguous, ChannelsLast, ChannelsLast3d,
                                                         Preserve};
  return entry_of(table, "a memory format", json, refuse);
}

}  // namespace ladder::exported
