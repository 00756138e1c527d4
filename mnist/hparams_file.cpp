// SPDX-License-Identifier: Apache-2.0
#include "mnist/hparams_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "ladder/core/error.h"
#include "ladder/io/yaml.h"

namespace mnist {

using ladder::UsageError;
using ladder::YamlNode;

std::vector<std::pair<std::string, std::string>> read_hparams(const std::string& path) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const auto& entry :
       ladder::read_yaml_file(path, "write 'name: value' lines into it").children) {
    const auto where = fmt::format("{}:{}: {:.80}", path, entry.line, entry.key);
    if (entry.is_empty()) {
      throw UsageError::missing(where, "a value", "remove the line to keep the default");
    }
    if (entry.kind != YamlNode::Kind::kText) {
      throw UsageError::malformed(where, "one value",
                                  entry.kind == YamlNode::Kind::kMap ? "a map" : "a list",
                                  "write each flag on a line of its own");
    }
    if (entry.text.find('\n') != std::string::npos) {
      throw UsageError::malformed(where, "a value on one line", fmt::format("{:.80}", entry.text),
                                  "write the value after the name and a colon");
    }
    if (entry.key.starts_with('-')) {
      throw UsageError::malformed(where, "the name of a flag without its dashes", entry.key,
                                  "such as batch-size: 32");
    }
    std::string name = entry.key;
    std::replace(name.begin(), name.end(), '_', '-');
    if (std::any_of(pairs.begin(), pairs.end(),
                    [&](const auto& other) { return other.first == name; })) {
      throw UsageError::conflict(where, "set twice, once with - and once with _",
                                 "keep one of the two");
    }
    pairs.emplace_back(std::move(name), entry.text);
  }
  return pairs;
}

}  // namespace mnist
