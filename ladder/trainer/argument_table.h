// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ladder/io/option_table.h"
#include "ladder/trainer/training_arguments.h"

namespace ladder {

// One row per training argument. Files, the command line and its help are made from this table: a
// new argument is a field of TrainingArguments and a row.
using TrainingArgument = Option<TrainingArguments>;

std::span<const TrainingArgument> training_argument_table();
// nullptr if there is no such argument.
const TrainingArgument* find_argument(std::string_view name);

// An argument that exists, or existed, only in TrainingArguments of transformers.
//
// Lists of arguments from elsewhere often contain these with their default, which is accepted. Any
// other value is refused, because the training would differ from the requested one, unless the
// argument makes no difference in this library.
struct UnsupportedArgument {
  std::string_view name;
  std::string_view default_json = "null";  // its default there
  std::string_view reason = "";            // why it makes no difference here; empty if it would
};

std::span<const UnsupportedArgument> unsupported_argument_table();

// nullptr if there is no such argument.
const UnsupportedArgument* find_unsupported_argument(std::string_view name);

// Accepts or refuses a value, as JSON or as typed text. Returns a warning for an accepted value
// that is not the default. Throws UsageError, which begins with `where`.
std::optional<std::string> accept_default(const UnsupportedArgument& argument,
                                          std::string_view where, const nlohmann::json& value);

struct DeprecatedName {
  std::string_view old;
  std::string_view now;
};

std::span<const DeprecatedName> deprecated_names();
// "evaluation_strategy: old name of eval_strategy".
std::string deprecation_warning(const DeprecatedName& name);

}  // namespace ladder
