// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "ladder/monitor/run_settings.h"
#include "ladder/trainer/training_arguments.h"

namespace ladder {

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
};

std::span<const TrainingArgument> training_argument_table();

// A value as typed: a text without quotes, a list with commas, "" for null. `read` accepts it.
std::string text_of(const nlohmann::ordered_json& value);

}  // namespace ladder
