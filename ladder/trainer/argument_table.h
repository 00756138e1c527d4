// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ladder/monitor/run_settings.h"
#include "ladder/trainer/training_arguments.h"

namespace ladder {

// Of a number: from `least` to `most`.
struct NumberRange {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool below = false;  // `most` itself is outside
};

// One row per training argument. Files, the command line and its help are made from this table: a
// new argument is a field of TrainingArguments and a row.
//
// A value is JSON, or a text as typed: "3" is a number, "true" a boolean, "a,b" a list and "{...}"
// an object.
struct TrainingArgument {
  std::string_view name;   // as in transformers: learning_rate
  std::string_view form;   // of the value, for help texts: N, X, PATH, no|steps|epoch
  std::string_view help;   // noun phrase
  Effect effect;           // of another value, between ranks, at a resume, and in output_dir
  bool value_is_optional;  // the name without a value means true
  // Throws UsageError, which begins with `where`. null unsets; numbers and choices refuse it.
  void (*read)(TrainingArguments&, const std::string& where, const nlohmann::json& value);
  nlohmann::ordered_json (*write)(const TrainingArguments&);
  NumberRange range = {};  // checked by resolve()
};

std::span<const TrainingArgument> training_argument_table();
// nullptr if there is no such argument.
const TrainingArgument* find_argument(std::string_view name);

// A value as typed: a text without quotes, a list with commas, "" for null. `read` accepts it.
std::string text_of(const nlohmann::ordered_json& value);

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
