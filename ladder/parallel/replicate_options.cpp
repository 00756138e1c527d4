// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/replicate_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ranges>

namespace ladder {

std::vector<std::pair<std::string, std::string>>& sum_names() {
  static std::vector<std::pair<std::string, std::string>> names = {{"fast", ""}};
  return names;
}

std::string sum_choices() {
  return fmt::format("{}", fmt::join(sum_names() | std::views::keys, "|"));
}

std::string sums_help() {
  std::string text = "sums of gradients";
  for (const auto& [name, help] : sum_names()) {
    if (!help.empty()) text += fmt::format("; {}: {}", name, help);
  }
  return text;
}

}  // namespace ladder
