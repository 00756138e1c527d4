// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>
#include <utility>

namespace ladder {

// Ends a run that a signal asked to end, once it has saved what it can. Not an Error: nothing went
// wrong. call_and_report prints `text`, unless it is empty, and returns 128 + signal.
class Interruption : public std::exception {
 public:
  Interruption(int signal, std::string text) : signal_(signal), text_(std::move(text)) {}

  int signal() const { return signal_; }  // SIGINT or SIGTERM
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  int signal_;
  std::string text_;
};

}  // namespace ladder
