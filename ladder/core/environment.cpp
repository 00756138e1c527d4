// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/environment.h"

#include <fmt/format.h>

#include <cstdlib>

#include "ladder/core/error.h"
#include "ladder/core/text.h"

namespace ladder {
std::optional<std::string> environment_variable(const std::string& name) {
  const char* text = std::getenv(name.c_str());
  if (text == nullptr || *text == '\0') return std::nullopt;
  return text;
}

std::optional<std::int64_t> environment_integer(const std::string& name, std::int64_t minimum) {
  const auto text = environment_variable(name);
  if (!text) return std::nullopt;
  const auto value = parse_number<std::int64_t>(*text);
  if (!value || *value < minimum) {
    throw UsageError::malformed(name, fmt::format("a whole number of at least {}", minimum), *text,
                                fmt::format("set {0} to one, or: unset {0}", name));
  }
  return value;
}

std::vector<std::int64_t> environment_integers(const std::string& name, std::int64_t minimum) {
  std::vector<std::int64_t> values;
  const auto text = environment_variable(name);
  if (!text) return values;
  for (const auto& entry : split(*text, ',')) {
    const auto value = parse_number<std::int64_t>(without_blanks(entry));
    if (!value || *value < minimum) {
      throw UsageError::malformed(
          name, fmt::format("whole numbers of at least {}, separated by commas", minimum), *text,
          fmt::format("set {0} to such a list, or: unset {0}", name));
    }
    values.push_back(*value);
  }
  return values;
}

}  // namespace ladder
