// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "ladder/core/error.h"

namespace ladder {

bool parse_bool(std::string_view where, std::string_view text) {
  constexpr std::array<std::string_view, 6> kTrue = {"y", "yes", "t", "true", "on", "1"};
  constexpr std::array<std::string_view, 6> kFalse = {"n", "no", "f", "false", "off", "0"};
  const std::string word = to_lower(text);
  if (std::find(kTrue.begin(), kTrue.end(), word) != kTrue.end()) return true;
  if (std::find(kFalse.begin(), kFalse.end(), word) != kFalse.end()) return false;
  throw UsageError::malformed(where, "true or false", shortened(text), "write true or false");
}

void require_path(std::string_view where, std::string_view path) {
  constexpr std::array<std::string_view, 8> kWords = {"true", "false", "yes",  "no",
                                                      "on",   "off",   "none", "null"};
  const bool is_word = std::ranges::find(kWords, to_lower(path)) != kWords.end();
  if (!is_word && !path.starts_with("--")) return;
  throw UsageError::malformed(where, "a path", path,
                              fmt::format("omit it, or write ./{} if you mean this name", path));
}

void require_no_pickle_name(std::string_view where, const std::string& path,
                            std::string_view converter) {
  constexpr std::array<std::string_view, 6> kPickles = {".pt",   ".pth", ".bin",
                                                        ".ckpt", ".pkl", ".tar"};
  std::filesystem::path name(path);
  if (std::ranges::find(kPickles, to_lower(name.extension().string())) == kPickles.end()) return;
  const auto safe = name.replace_extension(".safetensors").string();
  throw UsageError::malformed(where, "a name that torch.load does not take for its own", path,
                              fmt::format("use {0}, then: {1} {0} {2}", safe, converter, path));
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string_view without_blanks(std::string_view text) {
  const auto first = text.find_first_not_of(' ');
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(' ') - first + 1);
}

std::string to_lower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return lower;
}

std::string shortened(std::string_view text, std::size_t longest) {
  return fmt::format("{}{}", text.substr(0, longest), text.size() > longest ? "..." : "");
}

std::string grouped_digits(std::int64_t number) {
  if (number < 1000) return fmt::format("{}", number);
  return fmt::format("{},{:03}", grouped_digits(number / 1000), number % 1000);
}

}  // namespace ladder
