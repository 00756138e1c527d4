// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/core.h>

#include <functional>
#include <stdexcept>
#include <string>

namespace ladder::traps {

// Print one line: a measurement with the mistake, or with the guard.
void mistake(const std::string& label, const std::string& value);
void guard(const std::string& label, const std::string& value);

std::string distance_text(double distance);  // "1.2e-01"
std::string percent_text(double percent);    // "97.31 %"

// Throws std::runtime_error with `sentence` unless `shown`.
void require(bool shown, const std::string& sentence);

// Runs `wrong` and returns the guard's error. Throws std::runtime_error if there is none.
template <typename Error>
std::string error_of(const std::function<void()>& wrong) {
  try {
    wrong();
  } catch (const Error& error) {
    return error.what();
  }
  throw std::runtime_error("the guard did not catch it");
}

}  // namespace ladder::traps
