// SPDX-License-Identifier: Apache-2.0
#include "ladder/io/option_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "ladder/io/json.h"

namespace ladder {
namespace {

using Names = std::vector<std::string>;

// "a whole number from 1 to 64".
std::string expected_number(const OptionDetails& details, bool is_whole, double most) {
  const auto& [least, limit, below, role, files, alone, variable] = details;
  const char* const number = is_whole ? "a whole number" : "a number";
  if (std::isfinite(limit)) most = limit;
  if (!std::isfinite(least) && !std::isfinite(limit)) return number;
  if (!std::isfinite(most)) return fmt::format("{} >= {}", number, least);
  if (below) return fmt::format("{} >= {} and below {}", number, least, most);
  return fmt::format("{} from {} to {}", number, least, most);
}

}  // namespace

std::string text_of(const WrittenJson& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return fmt::format("{}", value.get<double>());
  if (!value.is_array()) return json_text(value);
  Names parts;
  for (const auto& part : value) parts.push_back(text_of(part));
  return fmt::format("{}", fmt::join(parts, ","));
}

void GivenValue::refuse(std::string_view expected, std::string_view hint) const {
  const bool is_plain = value.is_string() || value.is_number_float();  // JSON has no NaN
  const auto text = is_plain ? text_of(value) : json_text(value);
  throw UsageError::malformed(where, expected, shortened(text), hint);
}

void GivenValue::refuse_number(bool is_whole, double most) const {
  refuse(expected_number(row.details, is_whole, most),
         standard.is_null() ? fmt::format("leave it unset for the default: {}", row.help)
                            : fmt::format("the default is {}", json_text(standard)));
}

bool is_choice(const OptionColumns& row) {
  const bool is_placeholder = row.value.starts_with("N|") || row.value.starts_with("PATH|");
  return row.value.find('|') != row.value.npos && row.value != "true|false" && !is_placeholder;
}

std::size_t choice_of(const GivenValue& given) {
  const Names names = split(given.row.value, '|');
  if (!given.value.is_string()) {
    given.refuse(fmt::format("one of {}", fmt::join(names, ", ")), "");
  }
  const auto name = given.value.get<std::string>();
  require_one_of(given.where, name, names);
  return static_cast<std::size_t>(std::ranges::find(names, name) - names.begin()) -
         has_auto(given.row);
}

void require_one_of(const std::string& where, const std::string& name, const Names& names) {
  if (std::ranges::find(names, name) != names.end()) return;
  throw UsageError::unknown_name(where, name, names);
}

void read_value(const GivenValue& given, bool& target) {
  if (is_choice(given.row)) {
    target = choice_of(given) == 1;
  } else if (given.value.is_string()) {
    target = parse_bool(given.where, given.value.get<std::string>());
  } else if (given.value.is_boolean()) {
    target = given.value.get<bool>();
  } else {
    given.refuse("true or false", "write true or false");
  }
}

void read_value(const GivenValue& given, double& target) {
  std::optional<double> number;
  if (given.value.is_number()) number = given.value.get<double>();
  if (given.value.is_string()) number = parse_number<double>(given.value.get<std::string>());
  if (!number || !std::isfinite(*number) || !is_in_range(given.row.details, *number)) {
    given.refuse_number(false, kNoLimit);
  }
  target = *number;
}

void read_value(const GivenValue& given, std::string& target) {
  if (!given.value.is_string()) given.refuse("a text", "write it in quotes");
  target = given.value.get<std::string>();
  if (is_choice(given.row)) require_one_of(given.where, target, split(given.row.value, '|'));
  if (given.row.details.role != PathRole::kNone) require_path(given.where, target);
}

void read_value(const GivenValue& given, Names& target) {
  constexpr const char* kForm = "names, as a list or with commas between them";
  const auto refuse = [&] { given.refuse(kForm, "separate them by single commas"); };
  Names names;
  if (given.value.is_string()) {
    for (const auto& name : split(given.value.get<std::string>(), ',')) {
      names.emplace_back(without_blanks(name));
    }
  } else if (given.value.is_array()) {
    for (const auto& name : given.value) {
      names.emplace_back();
      read_value({given.row, given.where, name, given.standard}, names.back());
    }
  } else {
    refuse();
  }
  if (names == Names{""}) names.clear();
  if (std::ranges::find(names, "") != names.end()) refuse();
  target = names;
}

void read_value(const GivenValue& given, std::chrono::milliseconds& target) {
  std::int64_t seconds = 0;
  read_value(given, seconds);
  target = std::chrono::seconds(seconds);
}

bool is_in_range(const OptionDetails& details, double number) {
  return number >= details.least &&
         (details.below ? number < details.most : number <= details.most);
}

std::string with_values(std::string text, std::string_view where, const WrittenJson& values) {
  for (const auto& [name, value] : values.items()) {
    for (const auto& place : {"{" + name + "}", std::string(name == where ? "{}" : "")}) {
      const auto found = place.empty() ? text.npos : text.find(place);
      if (found != text.npos) text.replace(found, place.size(), text_of(value));
    }
  }
  return text;
}

}  // namespace ladder
