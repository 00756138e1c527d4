// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

#include "bench/suite/cases.h"

namespace ladder::bench {

struct ChildEnd {
  double started_at = 0.0;  // seconds of the steady clock
  double seconds = 0.0;     // until it ended
  std::string failure;      // why it is no result: exit code, signal or deadline, and its last line
};

// Runs a command to its end, its output in files `stdout` and `stderr` of `folder`. One that is not
// done after `deadline` is asked to end with all that it started, and 40 s later made to: torchrun
// gives its workers 30. So is one whose parent gets a signal, which then ends by that signal.
ChildEnd run_child(const Command& command, const std::filesystem::path& folder,
                   std::chrono::seconds deadline);

}  // namespace ladder::bench
