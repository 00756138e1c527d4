// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ladder {

// What transformers' TrainingArguments has, or had, and this library has not.
//
// A list of arguments that somebody brings along names some of these, often with the value that
// they have anyway. So the default is accepted in silence. Another value is refused, because the
// training would differ from the one asked for; unless it could make no difference here.
struct UnsupportedArgument {
  std::string_view name;
  std::string_view standard;  // its default there, as JSON
  std::string_view reason;    // why it makes no difference here; empty = it would
};

std::span<const UnsupportedArgument> foreign_argument_table();

// The one of that name, or none.
const UnsupportedArgument* find_foreign_argument(std::string_view name);

// Accepts or refuses a value, JSON or a text as typed. Returns what to tell the user, if anything.
// Throws UsageError, which begins with `where`.
std::optional<std::string> accept_default(const UnsupportedArgument& argument,
                                          std::string_view where, const nlohmann::json& value);

// A name that transformers has replaced.
struct DeprecatedName {
  std::string_view old;
  std::string_view now;
};

std::span<const DeprecatedName> old_argument_names();
// Such as "evaluation_strategy: old name of eval_strategy".
std::string note_of(const DeprecatedName& name);

}  // namespace ladder
