// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace ladder {

// The document tests/golden/`name`, which is read once.
template <typename Json = nlohmann::json>
const Json& golden_json(const char* name) {
  static std::map<std::string, Json> documents;
  const auto [found, is_new] = documents.try_emplace(name);
  if (is_new) {
    std::ifstream file(std::string(LADDER_SOURCE_DIR "/tests/golden/") + name);
    found->second = Json::parse(file);
  }
  return found->second;
}

// Python writes a float as text, mostly hexadecimal, which loses nothing; an integer as a number.
template <typename Json>
double number(const Json& value) {
  return value.is_string() ? std::strtod(value.template get<std::string>().c_str(), nullptr)
                           : value.template get<double>();
}

}  // namespace ladder
