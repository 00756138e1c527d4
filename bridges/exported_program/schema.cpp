// SPDX-License-Identifier: Apache-2.0
#include "bridges/exported_program/schema.h"

#include <limits>
#include <map>
#include <nlohmann/json.hpp>

namespace ladder::exported {
namespace {

using Json = nlohmann::json;

// The value of a number in `table`.
template <typename Value>
Value entry_of(const std::map<std::int64_t, Value>& table, const char* what, const Json& json,
               const JsonRefusal& refuse) {
  const auto found = table.find(integer_of(json, refuse));
  if (found == table.end()) refuse(what, json_for_message(json));
  return found->second;
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
  static const std::map<std::int64_t, torch::ScalarType> table = {
      {1, torch::kByte},  {2, torch::kChar},           {3, torch::kShort},
      {4, torch::kInt},   {5, torch::kLong},           {6, torch::kHalf},
      {7, torch::kFloat}, {8, torch::kDouble},         {10, torch::kComplexFloat},
      {12, torch::kBool}, {11, torch::kComplexDouble}, {13, torch::kBFloat16},
  };
  return entry_of(table, "a dtype of 8 to 64 bits per number", json, refuse);
}

torch::MemoryFormat memory_format_of(const Json& json, const JsonRefusal& refuse) {
  static const std::map<std::int64_t, torch::MemoryFormat> table = {
      {1, torch::MemoryFormat::Contiguous},
      {2, torch::MemoryFormat::ChannelsLast},
      {3, torch::MemoryFormat::ChannelsLast3d},
      {4, torch::MemoryFormat::Preserve},
  };
  return entry_of(table, "a memory format", json, refuse);
}

}  // namespace ladder::exported
