// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

namespace ladder::traps {

// A mistake that looks right and runs. Its demonstration makes it, measures the effect, and shows
// the guard that catches it, or how the correct program differs. It throws std::runtime_error if
// the mistake had no effect or the guard did not catch it.
struct Trap {
  std::string_view name;      // on the command line
  int stage;                  // the first in which the mistake is possible; from 7 on a lesson
  std::string_view sentence;  // the mistake
  void (*run)();
  std::string_view unrecorded = {};  // why tools/same_run has nothing to compare; empty = it has
};

// In the order of the stages, as in docs/traps.md.
std::span<const Trap> all_traps();

}  // namespace ladder::traps
