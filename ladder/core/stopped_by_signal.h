// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <csignal>
#include <exception>
#include <string>
#include <utility>

namespace ladder {

// A second signal so soon after the first is its echo: a launcher passes on what a scheduler has
// sent to all.
constexpr std::chrono::milliseconds kSignalEcho{500};

// How shells count the end by a signal.
constexpr int exit_code_of_signal(int signal) { return 128 + signal; }

// Whether this is the exit code of a program that was told to stop, by SIGINT or SIGTERM.
constexpr bool is_signal_exit_code(int exit_code) {
  return exit_code == exit_code_of_signal(SIGINT) || exit_code == exit_code_of_signal(SIGTERM);
}

// Ends a run that a signal asked to end, once it has saved what it can. Not an Error: nothing went
// wrong. call_and_report prints `text`, unless it is empty, and returns exit_code_of_signal.
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
