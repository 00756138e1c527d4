// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>

#include "bench/suite/cases.h"

namespace ladder::bench {

struct ChildEnd {
  double started_at = 0.0;  // seconds of the steady clock
  double seconds = 0.0;     // until it ended
  std::string failure;      // empty, or exit code, signal or timeout, and its last line
  bool available = true;    // false: exit code 77, the machine lacks what the program needs
};

// Runs a command to its end, with its output in the files `stdout` and `stderr` of `folder`. After
// `deadline`, it and all its processes get SIGTERM, and SIGKILL 40 s later: torchrun gives its
// workers 30. The same happens when this program gets a signal, which then ends it too. Until then
// `each_second` is called each second.
ChildEnd run_child(
    const Command& command, const std::filesystem::path& folder, std::chrono::seconds deadline,
    const std::function<void()>& each_second = [] {});

// The steps in the last line of a progress bar in a file of a program's output, such as " 188/938";
// without one, nothing.
std::string steps_in(const std::filesystem::path& path);

}  // namespace ladder::bench
