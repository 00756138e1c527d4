// SPDX-License-Identifier: Apache-2.0
#include "ladder/launch/launch_variables.h"

#include <fmt/format.h>

#include <algorithm>

#include "ladder/core/error.h"
#include "ladder/core/text.h"

namespace ladder {

std::optional<std::string> Variables::text(const std::string& name) const {
  auto value = (*lookup_)(name);
  if (value && value->empty()) value.reset();
  return value;
}

std::optional<std::int64_t> Variables::number(const std::string& name, std::int64_t minimum,
                                              std::int64_t maximum) const {
  const auto value_text = text(name);
  if (!value_text) return std::nullopt;
  const auto value = parse_number<std::int64_t>(*value_text);
  if (!value || *value < minimum || *value > maximum) {
    throw UsageError::malformed(name, fmt::format("a whole number, {} to {}", minimum, maximum),
                                *value_text, fmt::format("set {0} to one, or: unset {0}", name));
  }
  return value;
}

std::string Variables::first_set(std::initializer_list<const char*> names) const {
  const auto* const found =
      std::find_if(names.begin(), names.end(), [this](const char* name) { return has(name); });
  return found == names.end() ? "" : *found;
}

}  // namespace ladder
