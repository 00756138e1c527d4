// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <csignal>
#include <exception>
#include <string>
#include <utility>

namespace ladder {

// A second signal within this time is an echo of the first: a launcher forwards a signal that the
// scheduler has sent to all.
constexpr std::chrono::milliseconds kSignalEcho{500};

// The exit code that shells report for a program that a signal ended.
constexpr int exit_code_of_signal(int signal) { return 128 + signal; }

// Whether SIGINT or SIGTERM stopped the program with this exit code.
constexpr bool is_signal_exit_code(int exit_code) {
  return exit_code == exit_code_of_signal(SIGINT) || exit_code == exit_code_of_signal(SIGTERM);
}

// Ends a run after a signal, once it has saved its state. Not an Error. call_and_report prints
// `text`, unless it is empty, and returns exit_code_of_signal.
class StoppedBySignal : public std::exception {
 public:
  StoppedBySignal(int signal, std::string text) : signal_(signal), text_(std::move(text)) {}

  int signal() const { return signal_; }  // SIGINT or SIGTERM
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  int signal_;
  std::string text_;
};

}  // namespace ladder
