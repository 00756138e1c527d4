// SPDX-License-Identifier: Apache-2.0
// Classic mistakes of data-parallel training: the effect of each, and its guard.
//
//   build/bin/traps list
//   build/bin/traps raw-model-forward
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/launch/exit_status.h"
#include "traps/trap.h"

namespace {

using ladder::traps::all_traps;
using ladder::traps::Trap;

constexpr std::string_view kUsage =
    "Classic mistakes of data-parallel training: the effect of each, and its guard.\n"
    "\n"
    "usage: traps list    one line per mistake\n"
    "       traps NAME    one mistake: its measured effect and its guard\n"
    "\n"
    "Everything runs on the CPU and takes seconds. More: docs/traps.md\n";

std::string place_of(const Trap& trap) {
  return fmt::format("{} {}", trap.stage < 7 ? "stage" : "lesson", trap.stage);
}

void list() {
  for (const Trap& trap : all_traps()) {
    fmt::print("{:<23} {:<8}  {}\n", trap.name, place_of(trap), trap.sentence);
  }
}

void run(const std::string& name) {
  const auto traps = all_traps();
  const auto found =
      std::find_if(traps.begin(), traps.end(), [&](const Trap& trap) { return trap.name == name; });
  if (found == traps.end()) {
    std::vector<std::string> names = {"list"};
    for (const Trap& trap : traps) names.emplace_back(trap.name);
    throw ladder::UsageError::unknown_name("traps", name, names);
  }
  fmt::print("{} ({}): {}\n", found->name, place_of(*found), found->sentence);
  std::fflush(stdout);
  found->run();
  if (!found->unrecorded.empty() && std::getenv("LADDER_TRAP_RECORDS") != nullptr) {
    fmt::print("same_run: nothing to compare: {}\n", found->unrecorded);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() != 1 || words[0] == "--help" || words[0] == "-h") {
    fmt::print("{}", kUsage);
    return words.size() == 1 ? 0 : 2;
  }
  return ladder::call_and_report([&] { words[0] == "list" ? list() : run(words[0]); });
}
