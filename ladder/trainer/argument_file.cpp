// SPDX-License-Identifier: Apache-2.0
#include "ladder/trainer/argument_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <map>
#include <utility>

#include "ladder/accelerate/accelerate_config.h"
#include "ladder/core/error.h"
#include "ladder/io/json.h"
#include "ladder/io/yaml.h"
#include "ladder/trainer/argument_table.h"

namespace ladder {
namespace {

constexpr std::size_t kLongestName = 80;
constexpr const char* kHint = "write 'name: value' lines into a file whose name ends in .yaml";

bool is_standard(const std::string& name, const std::string& where, const nlohmann::json& value) {
  TrainingArguments arguments;
  const auto* row = find_argument(name);
  if (!value.is_null()) row->read(arguments, where, value);
  return row->write(arguments) == row->write({});
}

// `place` is the file, with the line if it is known; `written` the name as in the file.
void add_entry(std::vector<ArgumentEntry>& entries, const std::string& place,
               const std::string& written, nlohmann::json value,
               std::vector<std::string>& warnings) {
  std::string name = written.substr(0, kLongestName);
  const std::string where = fmt::format("{}: {}", place, name);
  std::replace(name.begin(), name.end(), '-', '_');
  const DeprecatedName* old = nullptr;
  for (const auto& deprecated : deprecated_names()) {
    if (name != deprecated.old) continue;
    old = &deprecated;
    name = deprecated.now;
  }
  const auto known = std::ranges::find(entries, name, &ArgumentEntry::name);
  if (known == entries.end()) {
    if (old != nullptr) warnings.push_back(deprecation_warning(*old));
    entries.push_back({name, where, std::move(value)});
    return;
  }
  // transformers 4 writes both names.
  const bool other_name = !known->where.ends_with(": " + written);
  if (other_name && is_standard(name, where, value)) return;
  if (!other_name || !is_standard(name, where, known->value)) {
    throw UsageError::conflict(where, fmt::format("sets {} again", name), "keep one");
  }
  *known = {name, where, std::move(value)};
}

[[noreturn]] void refuse_unknown(const ArgumentEntry& entry) {
  const auto nearest = nearest_name(entry.name, option_names(training_argument_table()));
  throw UsageError::conflict(entry.where, "no such training argument",
                             nearest.empty() ? "see the fields of TrainingArguments"
                                             : fmt::format("did you mean {}?", nearest));
}

// "no such argument, did you mean seed?"
std::string without_place(const ArgumentEntry& entry, std::string_view message) {
  if (message.starts_with(entry.where)) message.remove_prefix(entry.where.size());
  message.remove_prefix(std::min(message.find_first_not_of(": "), message.size()));
  const auto hint = message.find("; hint: ");
  const auto what = std::string(message.substr(0, hint));
  const bool names_another = message.find("; hint: did you mean") != message.npos;
  return names_another ? fmt::format("{}, {}", what, message.substr(hint + 8)) : what;
}

}  // namespace

std::vector<ArgumentEntry> parse_arguments(const nlohmann::json& object, std::string_view origin,
                                           std::vector<std::string>& warnings) {
  if (!object.is_object()) {
    throw UsageError::conflict(origin, "not a map of names to values", "write {\"name\": value}");
  }
  std::vector<ArgumentEntry> entries;
  for (const auto& [name, value] : object.items()) {
    add_entry(entries, std::string(origin), name, value, warnings);
  }
  return entries;
}

std::vector<ArgumentEntry> read_argument_file(const std::string& path,
                                              std::vector<std::string>& warnings) {
  const std::string bytes = read_config_bytes(path, kHint);
  const std::string extension = std::filesystem::path(path).extension().string();
  if (extension == ".json") {
    const auto refuse = [&](const std::string& expected, const std::string& got) {
      throw UsageError::conflict(path, fmt::format("expected {}, got {}", expected, got),
                                 "write {\"name\": value}, with names and texts in double quotes");
    };
    const JsonLimits limits{.max_bytes = kLargestConfigFile};
    return parse_arguments(parse_untrusted_json(bytes, refuse, limits), path, warnings);
  }
  if (extension != ".yaml" && extension != ".yml") {
    throw UsageError::malformed(path, "a name that ends in .json, .yaml or .yml", extension, kHint);
  }
  std::vector<ArgumentEntry> entries;
  for (const auto& node : parse_yaml(bytes, path).children) {
    add_entry(entries, fmt::format("{}:{}", path, node.line), node.key, json_of(node), warnings);
  }
  return entries;
}

void assign(const ArgumentEntry& entry, TrainingArguments& arguments,
            std::vector<std::string>& warnings) {
  if (const auto* row = find_argument(entry.name)) {
    row->read(arguments, entry.where, entry.value);
  } else if (const auto* unsupported = find_unsupported_argument(entry.name)) {
    auto warning = accept_default(*unsupported, entry.where, entry.value);
    if (warning) warnings.push_back(std::move(*warning));
  } else {
    refuse_unknown(entry);
  }
}

void assign(const std::vector<ArgumentEntry>& entries, std::string_view origin,
            TrainingArguments& arguments, std::vector<std::string>& warnings) {
  std::exception_ptr first;
  std::map<std::string, std::string> refused;  // the names by the reason
  for (const auto& entry : entries) {
    try {
      assign(entry, arguments, warnings);
    } catch (const UsageError& error) {
      if (!first) first = std::current_exception();
      auto& names = refused[without_place(entry, error.what())];
      names += (names.empty() ? "" : ", ") + entry.name;
    }
  }
  if (!first) return;
  for (const auto& entry : entries) {
    if (const auto file = file_with_key(entry.name); !file.empty()) {
      throw UsageError::conflict(origin, fmt::format("has {}: it is {}", entry.name, file), kHint);
    }
  }
  if (refused.size() == 1 && refused.begin()->second.find(',') == std::string::npos) {
    std::rethrow_exception(first);
  }
  std::vector<std::string> lines;
  for (const auto& [reason, names] : refused) lines.push_back(fmt::format("{}: {}", names, reason));
  throw UsageError::conflict(origin, fmt::format("{}", fmt::join(lines, "; ")),
                             "remove or correct these; arguments with their default are accepted");
}

}  // namespace ladder
