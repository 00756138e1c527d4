// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "ladder/trainer/training_arguments.h"

namespace ladder {

// One name and value of a file of training arguments, not yet in its field, so that a command line
// can override it. Most programs call read_training_arguments() instead.
struct ArgumentEntry {
  std::string name;      // with underscores; the current name of a deprecated one
  std::string where;     // for messages, such as "args.yaml:3: learning_rate"
  nlohmann::json value;  // from YAML: texts, maps, lists and null
};

// The entries of a .json, .yaml or .yml file in its order (JSON: sorted by name). Throws UsageError
// for an unreadable or malformed file and for a name that occurs twice; a deprecated name beside
// the current one may do so with the default. Adds a line to `warnings` for each deprecated name.
// Checks neither the names nor the values.
std::vector<ArgumentEntry> read_argument_file(const std::string& path,
                                              std::vector<std::string>& warnings);

// The same for the members of an object; `origin` begins the messages.
std::vector<ArgumentEntry> parse_arguments(const nlohmann::json& object, std::string_view origin,
                                           std::vector<std::string>& warnings);

// Reads the value into its field; for an unsupported argument, checks it (see accept_default).
// Throws UsageError, also for an unknown name.
void assign(const ArgumentEntry& entry, TrainingArguments& arguments,
            std::vector<std::string>& warnings);

// The same for all entries of the file `origin`: one UsageError lists all that are refused, or says
// which other kind of file it is.
void assign(const std::vector<ArgumentEntry>& entries, std::string_view origin,
            TrainingArguments& arguments, std::vector<std::string>& warnings);

}  // namespace ladder
