// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace ladder {

// A small configuration file in YAML, read without trust.
//
// YAML can do far more than settings need: a dozen lines of aliases can stand for billions of
// values, a tag can ask a reader to build an object, deep nesting can exhaust a stack. A file is
// therefore refused, by a UsageError (exit code 2) that begins with `file:line: `, if it
//   - is longer than 64 KiB, is not UTF-8, or holds control characters;
//   - is not YAML, or holds none or several documents;
//   - is not a map of names to values, or has a name twice in one map;
//   - has an alias, a tag, or a line that begins with %;
//   - nests deeper than 8 levels, or has more than 1000 values.
//
// A value is a null, a text, a map or a list. Callers decide what a text means (a number, a flag):
// YAML 1.1, which Python reads, takes a bare `no` for false and 1e-3 for a text, and YAML 1.2 does
// not. JSON is YAML, so a JSON file is read as well.

struct YamlNode {
  enum class Kind { kNull, kText, kMap, kList };

  Kind kind = Kind::kNull;         // null: no value, ~ or null, without quotes
  std::string key;                 // its name in the map around it; "" outside a map
  std::string text;                // of a text: without its quotes
  int line = 0;                    // of the name, or of a value without one; from 1
  std::vector<YamlNode> children;  // of a map or a list, in the order of the file

  // True for null, "", {} and [].
  bool is_empty() const { return text.empty() && children.empty(); }
};

constexpr std::size_t kLargestConfigFile = 65'536;  // bytes

// The bytes of a configuration file; of one that is too long, the first kLargestConfigFile + 1.
// Throws UsageError, with `hint`, unless it is a regular file that can be read.
std::string read_config_bytes(const std::string& path, std::string_view hint);

// Parses the bytes of a file; `name` begins the messages. The result is a map.
YamlNode parse_yaml(std::string_view bytes, const std::string& name);

// Parses what read_config_bytes returns.
YamlNode read_yaml_file(const std::string& path, std::string_view hint);

// A value as JSON, in which each scalar is a text.
nlohmann::json json_of(const YamlNode& node);

}  // namespace ladder
