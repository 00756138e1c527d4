// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "ladder/trainer/training_arguments.h"

namespace ladder {

// Training arguments on their way from a file into their fields: a name and a value each, so that
// a command line can stand between them. Most programs want read_training_arguments().
struct ArgumentEntry {
  std::string name;      // with underscores, as the tables have it; no old name
  std::string where;     // for messages, such as "args.yaml:3: learning_rate"
  nlohmann::json value;  // of YAML: texts, maps and lists of them, null
};

// The entries of a file, in its order (JSON: in the order of names). Throws UsageError for a file
// that cannot be read or is not of its form, an unknown name and one that stands there twice. Says
// in `notes` what was called by an old name. The values are not looked at.
std::vector<ArgumentEntry> read_argument_file(const std::string& path,
                                              std::vector<std::string>& notes);

// The same for bytes in memory. The end of `name` says of what form they are.
std::vector<ArgumentEntry> parse_argument_file(std::string_view bytes, const std::string& name,
                                               std::vector<std::string>& notes);

// The same for the members of an object; `origin` begins the messages.
std::vector<ArgumentEntry> parse_arguments(const nlohmann::json& object, std::string_view origin,
                                           std::vector<std::string>& notes);

// Reads the value into its field, or passes over what is foreign. Throws UsageError.
void assign(const ArgumentEntry& entry, TrainingArguments& arguments,
            std::vector<std::string>& notes);

}  // namespace ladder
