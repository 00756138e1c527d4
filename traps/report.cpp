// SPDX-License-Identifier: Apache-2.0
#include "traps/report.h"

#include <cstdio>

namespace ladder::traps {
namespace {

void print_line(const char* side, const std::string& label, const std::string& value) {
  fmt::print("{:<7}  {:<26}  {}\n", side, label, value);
  std::fflush(stdout);
}

}  // namespace

void mistake(const std::string& label, const std::string& value) {
  print_line("mistake", label, value);
}

void guard(const std::string& label, const std::string& value) {
  print_line("guard", label, value);
}

std::string distance_text(double distance) {
  return distance == 0.0 ? "0" : fmt::format("{:.1e}", distance);
}

std::string percent_text(double percent) { return fmt::format("{:.2f} %", percent); }

void require(bool shown, const std::string& sentence) {
  if (!shown) throw std::runtime_error(sentence);
}

}  // namespace ladder::traps
