// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ladder {

// Environment variables, through which launchers (torchrun, mpirun, srun) and users
// tell a program what it did not get on its command line.
//
// A variable that is set to nothing counts as unset, as `RANK= ./program` is usually
// meant. Reads only; safe while no thread changes the environment.

// The number that `text` is, all of it, or nothing.
std::optional<std::int64_t> whole_number(std::string_view text);

// The text of a variable, or nothing if it is unset or empty.
std::optional<std::string> environment_variable(const std::string& name);

// The value of a variable that must hold a whole number of at least `minimum`.
// Throws UsageError naming the variable if it holds anything else.
std::optional<std::int64_t> environment_integer(const std::string& name, std::int64_t minimum);

// The values of a variable that holds such numbers separated by commas, as OMP_NUM_THREADS
// may ("4,1": four threads, one each for regions inside regions). Spaces around a number are
// allowed. Empty if the variable is unset; throws UsageError like environment_integer.
std::vector<std::int64_t> environment_integers(const std::string& name, std::int64_t minimum);

}  // namespace ladder
