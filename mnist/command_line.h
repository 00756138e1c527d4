// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "mnist/options.h"

namespace mnist {

// The request of a command line: a run, or only a text (--help, --version).
template <typename Options>
struct CommandLine {
  std::optional<Options> options;  // unset if only `text` is to be printed
  std::string text;
};

// Reads the command line of the stage of `Options`, one of the structs of options.h. The
// options come back checked and complete.
//
// Throws UsageError for an unknown flag (naming the nearest one), for a value of the wrong form or
// outside its range, and for an output file that cannot be written. An underscore in a flag's name
// counts as a dash, so the tutorials' spellings work. Calls neither torch nor CUDA, so that the
// program may still fork afterwards.
template <typename Options>
CommandLine<Options> parse_command_line(int argc, const char* const* argv);

}  // namespace mnist
