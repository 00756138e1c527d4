// SPDX-License-Identifier: Apache-2.0
#include "ladder/trainer/argument_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <ios>
#include <system_error>
#include <utility>

#include "ladder/accelerate/yaml_file.h"
#include "ladder/checkpoint/saved_json.h"
#include "ladder/core/error.h"
#include "ladder/trainer/argument_table.h"
#include "ladder/trainer/unsupported_arguments.h"

namespace ladder {
namespace {

constexpr std::size_t kLongestName = 80;
constexpr std::size_t kLargestFile = 65'536;
constexpr const char* kHint = "write 'name: value' lines into a file whose name ends in .yaml";

const TrainingArgument* find_argument(std::string_view name) {
  const auto table = training_argument_table();
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const auto& row) { return row.name == name; });
  return found == table.end() ? nullptr : &*found;
}

UsageError unknown(const std::string& where, const std::string& name) {
  std::vector<std::string> names;
  for (const auto& row : training_argument_table()) names.emplace_back(row.name);
  const std::string nearest = nearest_name(name, names);
  return UsageError::conflict(where, "no such training argument",
                              nearest.empty() ? "see the fields of TrainingArguments"
                                              : fmt::format("did you mean {}?", nearest));
}

// Gathers the entries of one file.
class Entries {
 public:
  explicit Entries(std::vector<std::string>& notes) : notes_(notes) {}

  // `place` is the file, with the line if it is known.
  void add(const std::string& place, const std::string& written, nlohmann::json value) {
    const std::string where = fmt::format("{}: {}", place, written.substr(0, kLongestName));
    const std::string name = current_name(written.substr(0, kLongestName));
    if (find_argument(name) == nullptr && find_foreign_argument(name) == nullptr) {
      throw unknown(where, name);
    }
    const bool again = std::any_of(entries_.begin(), entries_.end(),
                                   [&](const auto& entry) { return entry.name == name; });
    if (again) {
      throw UsageError::conflict(where, fmt::format("sets {} again", name), "keep one of the two");
    }
    entries_.push_back({name, where, std::move(value)});
  }

  std::vector<ArgumentEntry> take() && { return std::move(entries_); }

 private:
  std::string current_name(std::string name) {
    std::replace(name.begin(), name.end(), '-', '_');
    for (const auto& old : old_argument_names()) {
      if (name != old.old) continue;
      notes_.push_back(note_of(old));
      return std::string(old.now);
    }
    return name;
  }

  std::vector<std::string>& notes_;
  std::vector<ArgumentEntry> entries_;
};

nlohmann::json json_of(const YamlNode& node) {
  using Kind = YamlNode::Kind;
  if (node.kind == Kind::kNull) return nullptr;
  if (node.kind == Kind::kText) return node.text;
  auto json = node.kind == Kind::kMap ? nlohmann::json::object() : nlohmann::json::array();
  for (const auto& child : node.children) {
    if (node.kind == Kind::kMap) json[child.key] = json_of(child);
    if (node.kind == Kind::kList) json.push_back(json_of(child));
  }
  return json;
}

std::vector<ArgumentEntry> yaml_entries(std::string_view bytes, const std::string& name,
                                        std::vector<std::string>& notes) {
  Entries entries(notes);
  for (const auto& node : parse_yaml(bytes, name).children) {
    entries.add(fmt::format("{}:{}", name, node.line), node.key, json_of(node));
  }
  return std::move(entries).take();
}

std::string bytes_of(const std::string& path) {
  std::error_code ignored;
  std::ifstream stream;
  if (std::filesystem::is_regular_file(path, ignored)) stream.open(path, std::ios::binary);
  if (!stream.is_open()) throw UsageError::conflict(path, "cannot be read", kHint);
  std::string bytes(kLargestFile + 1, '\0');
  stream.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<std::size_t>(stream.gcount()));
  return bytes;
}

// The line where a text stops being JSON.
UsageError not_json(const std::string& name, std::string_view bytes) {
  try {
    const bool nested = nlohmann::json::parse(bytes).is_structured();
    return UsageError::conflict(name, nested ? "nested too deep" : "not JSON", "");
  } catch (const nlohmann::json::parse_error& error) {
    const auto before = bytes.substr(0, error.byte);
    return UsageError::conflict(
        fmt::format("{}:{}", name, 1 + std::count(before.begin(), before.end(), '\n')), "not JSON",
        "names and texts stand in double quotes, and no comma before a }");
  } catch (const nlohmann::json::exception&) {
    return UsageError::conflict(name, "a number is too large", "");
  }
}

nlohmann::json json_from(std::string_view bytes, const std::string& name) {
  if (bytes.size() > kLargestFile) {
    throw UsageError::out_of_range(name, bytes.size(), "at most 65536 bytes",
                                   "is it the file of training arguments?");
  }
  try {
    return parse_saved_json(bytes, name);
  } catch (const DataError&) {
    throw not_json(name, bytes);
  }
}

}  // namespace

std::vector<ArgumentEntry> parse_arguments(const nlohmann::json& object, std::string_view origin,
                                           std::vector<std::string>& notes) {
  if (!object.is_object()) {
    throw UsageError::conflict(origin, "no map of names to values", "write {\"name\": value}");
  }
  Entries entries(notes);
  for (const auto& [name, value] : object.items()) entries.add(std::string(origin), name, value);
  return std::move(entries).take();
}

std::vector<ArgumentEntry> parse_argument_file(std::string_view bytes, const std::string& name,
                                               std::vector<std::string>& notes) {
  const std::string extension = std::filesystem::path(name).extension().string();
  if (extension == ".json") return parse_arguments(json_from(bytes, name), name, notes);
  if (extension == ".yaml" || extension == ".yml") return yaml_entries(bytes, name, notes);
  throw UsageError::malformed(name, "a name that ends in .json, .yaml or .yml", extension, kHint);
}

std::vector<ArgumentEntry> read_argument_file(const std::string& path,
                                              std::vector<std::string>& notes) {
  return parse_argument_file(bytes_of(path), path, notes);
}

void assign(const ArgumentEntry& entry, TrainingArguments& arguments,
            std::vector<std::string>& notes) {
  if (const auto* row = find_argument(entry.name)) {
    row->read(arguments, entry.where, entry.value);
  } else if (const auto* foreign = find_foreign_argument(entry.name)) {
    auto note = accept_default(*foreign, entry.where, entry.value);
    if (note) notes.push_back(std::move(*note));
  }
}

}  // namespace ladder
