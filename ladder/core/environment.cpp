// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "ladder/core/error.h"

namespace ladder {

std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end) return std::nullopt;
  return value;
}

namespace {

std::string_view without_spaces_around(std::string_view text) {
  const auto first = text.find_first_not_of(' ');
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(' ') - first + 1);
}

}  // namespace

std::optional<std::string> environment_variable(const std::string& name) {
  const char* text = std::getenv(name.c_str());
  if (text == nullptr || *text == '\0') return std::nullopt;
  return text;
}

std::optional<std::int64_t> environment_integer(const std::string& name, std::int64_t minimum) {
  const auto text = environment_variable(name);
  if (!text) return std::nullopt;
  const auto value = whole_number(*text);
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
  for (std::size_t begin = 0; begin <= text->size();) {
    const std::size_t end = std::min(text->find(',', begin), text->size());
    const auto value =
        whole_number(without_spaces_around(std::string_view(*text).substr(begin, end - begin)));
    if (!value || *value < minimum) {
      throw UsageError::malformed(
          name, fmt::format("whole numbers of at least {}, separated by commas", minimum), *text,
          fmt::format("set {0} to such a list, or: unset {0}", name));
    }
    values.push_back(*value);
    begin = end + 1;
  }
  return values;
}

}  // namespace ladder
