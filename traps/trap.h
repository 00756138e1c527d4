// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

namespace ladder::traps {

// A mistake that looks right and runs. Its demonstration makes it, measures what it does, and shows
// what catches it here, or how the right way differs. It throws std::runtime_error if the mistake
// had no effect or nothing caught it.
struct Trap {
  std::string_view name;      // on the command line
  std::string_view lesson;    // tutorial and item where the mistake is from; see docs/traps.md
  std::string_view sentence;  // what people do
  void (*run)();
};

// In the order of docs/traps.md.
std::span<const Trap> all_traps();

}  // namespace ladder::traps
