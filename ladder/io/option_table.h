// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/core/run_setting.h"
#include "ladder/core/text.h"

namespace ladder {

// A table of options beside their struct, with a row per field, and a table of rules.
//
//     constexpr Option<Sizes> kSizes[] = {
//         option<&Sizes::epochs>(kTraining, "epochs", "N", "passes over the data", {0, 1e9}),
//         option<&Sizes::math>(kWeights, "math", "fast|reference", "arithmetic"),
//     };
//     constexpr Rule<Sizes> kRules[] = {
//         {"math", [](const Sizes& s) { return s.math == Math::kFast && s.epochs > 9; },
//          "fast, with {epochs} epochs", "set math to reference"},
//     };
//
// Everything that reads, writes, checks, compares or prints options is made from the table: files,
// flags with their help, variables of the environment, the settings that ranks compare and that
// checkpoints keep. So a new option is a field and a row.
//
// A value is JSON, or a text as typed: "3" is a number, "true" a boolean, "a,b" a list. null
// unsets; numbers and choices refuse it.

using WrittenJson = nlohmann::ordered_json;

// What a run does with the path in an option; see require_distinct_paths.
enum class PathRole { kNone, kRead, kWritten, kFolder };

inline constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// The columns that only some options need.
struct OptionDetails {
  double least = -kNoLimit;  // of a number
  double most = kNoLimit;
  bool below = false;               // `most` itself is outside
  PathRole role = PathRole::kNone;  // of a path
  const char* files = "*";         // of a folder: what the run has there, as a pattern of the shell
  const char* alone = nullptr;     // what the name without a value means; nullptr = an error
  const char* variable = nullptr;  // of the environment
};

struct OptionColumns {
  Effect effect;           // of another value, between ranks and on a resume
  std::string_view name;   // of the field: learning_rate
  std::string_view value;  // for help: N, X, PATH, NAMES, JSON; no|steps|epoch lists the names of
                           // the values in their order; "" = a flag
  std::string_view help;   // noun phrase
  OptionDetails details = {};
};

// A value to read, and what a refusal of it names.
struct GivenValue {
  const OptionColumns& row;
  const std::string& where;  // begins the message
  const nlohmann::json& value;
  const WrittenJson& standard;  // the default

  [[noreturn]] void refuse(std::string_view expected, std::string_view hint) const;
  // `most`: of the type, where the row has none.
  [[noreturn]] void refuse_number(bool is_whole, double most) const;
};

template <typename S>
struct Option : OptionColumns {
  void (*reader)(const GivenValue& given, S& options);
  WrittenJson (*writer)(const OptionColumns& row, const S& options);

  // Throws UsageError, which begins with `where`.
  void read(S& options, const std::string& where, const nlohmann::json& given) const {
    reader({*this, where, given, write({})}, options);
  }
  WrittenJson write(const S& options) const { return writer(*this, options); }
};

// What options must not be together. In `got`, {name} stands for the value of an option, {} for
// that of the option `where`.
template <typename S>
struct Rule {
  const char* where;
  bool (*broken)(const S&);
  const char* got;
  const char* hint;
};

// A value as typed: a text without quotes, a list with commas, "" for null.
std::string text_of(const WrittenJson& value);

// --- Values of the types that a field may have ---

bool is_choice(const OptionColumns& row);
// Of an optional choice: auto|fp32|bf16 begins with the name for unset.
inline bool has_auto(const OptionColumns& row) { return row.value.starts_with("auto|"); }
std::size_t choice_of(const GivenValue& given);  // the number of the name, without auto
void require_one_of(const std::string& where, const std::string& name,
                    const std::vector<std::string>& names);

void read_value(const GivenValue& given, bool& target);
void read_value(const GivenValue& given, double& target);
void read_value(const GivenValue& given, std::string& target);
void read_value(const GivenValue& given, std::vector<std::string>& target);   // a list, or commas
void read_value(const GivenValue& given, std::chrono::milliseconds& target);  // seconds

bool is_in_range(const OptionDetails& details, double number);

template <std::integral Number>
void read_value(const GivenValue& given, Number& target) {
  const auto& value = given.value;
  std::optional<Number> number;
  const auto narrow = [&](auto whole) {
    if (std::in_range<Number>(whole)) number = static_cast<Number>(whole);
  };
  if (value.is_string()) number = parse_number<Number>(value.get_ref<const std::string&>());
  if (value.is_number_unsigned()) {
    narrow(value.template get<std::uint64_t>());
  } else if (value.is_number_integer()) {
    narrow(value.template get<std::int64_t>());
  }
  if (!number || !is_in_range(given.row.details, static_cast<double>(*number))) {
    constexpr auto kLargest = static_cast<double>(std::numeric_limits<Number>::max());
    given.refuse_number(true, sizeof(Number) < 8 ? kLargest : kNoLimit);
  }
  target = *number;
}

template <typename Enum>
  requires std::is_enum_v<Enum>
void read_value(const GivenValue& given, Enum& target) {
  target = static_cast<Enum>(choice_of(given));
}

template <typename Value>
void read_value(const GivenValue& given, std::optional<Value>& target) {
  if (given.value == (has_auto(given.row) ? "auto" : "none")) return target.reset();
  Value value{};
  read_value(given, value);
  target = value;
}

template <typename Value>
WrittenJson written(const OptionColumns& row, const Value& value) {
  if constexpr (std::is_same_v<Value, bool>) {
    if (!is_choice(row)) return value;
  }
  if constexpr (std::is_enum_v<Value> || std::is_same_v<Value, bool>) {
    return split(row.value, '|').at(static_cast<std::size_t>(value) + has_auto(row));
  } else if constexpr (std::is_same_v<Value, std::chrono::milliseconds>) {
    return std::chrono::duration_cast<std::chrono::seconds>(value).count();
  } else if constexpr (std::is_same_v<Value, std::string>) {
    return value.empty() ? WrittenJson() : WrittenJson(value);
  } else {
    return value;
  }
}
template <typename Value>
WrittenJson written(const OptionColumns& row, const std::optional<Value>& value) {
  if (value) return written(row, *value);
  return has_auto(row) ? WrittenJson("auto") : WrittenJson();
}

// --- Rows ---

template <typename S, typename Value>
S struct_of(Value S::*);

// null gives flags, texts and lists their default back, and unsets what may be unset.
template <typename S, auto... kMembers>
void read_member(const GivenValue& given, S& options) {
  auto& target = (options.*....*kMembers);
  using Value = std::remove_cvref_t<decltype(target)>;
  constexpr bool kIsFlag = std::is_same_v<Value, bool>;
  constexpr bool kNeedsValue = std::is_arithmetic_v<Value> || std::is_enum_v<Value>;
  if (given.value.is_null() && (!kNeedsValue || (kIsFlag && !is_choice(given.row)))) {
    const S defaults;
    target = (defaults.*....*kMembers);
  } else {
    read_value(given, target);
  }
}

template <typename S, auto... kMembers>
WrittenJson write_member(const OptionColumns& row, const S& options) {
  return written(row, (options.*....*kMembers));
}

template <typename S>
using ReadOption = void (*)(const GivenValue& given, S& options);
template <typename S>
using WriteOption = WrittenJson (*)(const OptionColumns& row, const S& options);

// The row of a member, or of a member of a member: option<&A::b, &B::c>.
template <auto kFirst, auto... kRest>
constexpr auto option(Effect effect, std::string_view name, std::string_view value,
                      std::string_view help, OptionDetails details = {}) {
  using S = decltype(struct_of(kFirst));
  return Option<S>{{effect, name, value, help, details},
                   read_member<S, kFirst, kRest...>,
                   write_member<S, kFirst, kRest...>};
}

// The same, with a form of its own.
template <auto kMember, typename S = decltype(struct_of(kMember))>
constexpr Option<S> option(Effect effect, std::string_view name, std::string_view value,
                           std::string_view help, ReadOption<S> read, OptionDetails details = {}) {
  return {{effect, name, value, help, details}, read, write_member<S, kMember>};
}
template <typename S>
constexpr Option<S> option(Effect effect, std::string_view name, std::string_view value,
                           std::string_view help, ReadOption<S> read, WriteOption<S> write,
                           OptionDetails details = {}) {
  return {{effect, name, value, help, details}, read, write};
}

// --- Tables: arrays or spans of rows ---

// nullptr if there is no such option.
const auto* find_option(const auto& table, std::string_view name) {
  for (const auto& row : table) {
    if (row.name == name) return &row;
  }
  return static_cast<decltype(&*std::begin(table))>(nullptr);
}

std::vector<std::string> option_names(const auto& table) {
  std::vector<std::string> names;
  for (const auto& row : table) names.emplace_back(row.name);
  return names;
}

// All options by name.
template <typename S>
WrittenJson to_json(const auto& table, const S& options) {
  auto json = WrittenJson::object();
  for (const auto& row : table) json[row.name] = row.write(options);
  return json;
}

template <typename S>
RunSettings settings_of(const auto& table, const S& options) {
  RunSettings settings;
  for (const auto& row : table) {
    settings.push_back({std::string(row.name), text_of(row.write(options)), row.effect});
  }
  return settings;
}

// `text` with the values of the options that it names in braces; see Rule.
std::string with_values(std::string text, std::string_view where, const WrittenJson& values);

// Throws UsageError for values that `read` would refuse: code fills a struct without the table.
template <typename S>
void require_values(const auto& table, const S& options) {
  S copy;
  for (const auto& row : table) row.read(copy, std::string(row.name), row.write(options));
}

// Throws UsageError for the first broken rule. `values`: of {name}, as of to_json(table, options).
template <typename S>
void require_rules(const auto& rules, const S& options, const WrittenJson& values = {}) {
  for (const auto& rule : rules) {
    if (!rule.broken(options)) continue;
    throw UsageError::conflict(rule.where, with_values(rule.got, rule.where, values), rule.hint);
  }
}

}  // namespace ladder
