// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "ladder/trainer/training_arguments.h"

namespace ladder {

// One table of all training arguments, from which files, flags and --help follow.
//
// A row knows its argument's name, how to read its value, and how to write it back. A new argument
// is a field of TrainingArguments and a row. A value comes as JSON, or as the text that somebody
// typed: "3" is a number, "true" a flag, "a,b" a list and "{...}" an object.
struct TrainingArgument {
  std::string_view name;  // as in transformers: learning_rate
  std::string_view form;  // of the value, for --help: N, X, PATH, no|steps|epoch
  std::string_view help;
  bool may_stand_alone;  // the flag without a value means true
  // Throws UsageError, which begins with `where`. null unsets; numbers and choices refuse it.
  void (*read)(TrainingArguments&, const std::string& where, const nlohmann::json& value);
  nlohmann::ordered_json (*write)(const TrainingArguments&);
};

std::span<const TrainingArgument> training_argument_table();

// A value as it is typed: a text bare, a list with commas; "" for null. The rows read it back.
std::string text_of(const nlohmann::ordered_json& value);

}  // namespace ladder
