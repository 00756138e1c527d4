// SPDX-License-Identifier: Apache-2.0
#include "bench/suite/user_lines.h"

#include <fstream>
#include <string>
#include <string_view>

namespace ladder::bench {
namespace {

bool is_code_of_cpp(std::string_view text) {
  return !text.starts_with("//") && !text.starts_with('#');
}

// Reads lines in their order: docstrings and imports may go over several.
class PythonLines {
 public:
  bool is_code(std::string_view text) {
    constexpr std::string_view kQuotes = "\"\"\"";
    if (in_docstring_) {
      in_docstring_ = text.find(kQuotes) == std::string_view::npos;
      return false;
    }
    if (in_import_) {
      in_import_ = text.find(')') == std::string_view::npos;
      return false;
    }
    if (text.starts_with(kQuotes)) {
      in_docstring_ = text.find(kQuotes, kQuotes.size()) == std::string_view::npos;
      return false;
    }
    if (text.starts_with("import ") || text.starts_with("from ")) {
      in_import_ = text.ends_with('(');
      return false;
    }
    return !text.starts_with('#');
  }

 private:
  bool in_docstring_ = false;
  bool in_import_ = false;
};

}  // namespace

std::optional<double> user_lines(const std::filesystem::path& source) {
  std::ifstream file(source);
  if (!file) return std::nullopt;
  const bool is_python = source.extension() == ".py";
  PythonLines python;
  double lines = 0.0;
  for (std::string line; std::getline(file, line);) {
    const auto begin = line.find_first_not_of(" \t");
    if (begin == std::string::npos) continue;
    const auto text = std::string_view(line).substr(begin);
    if (is_python ? python.is_code(text) : is_code_of_cpp(text)) ++lines;
  }
  return lines;
}

}  // namespace ladder::bench
