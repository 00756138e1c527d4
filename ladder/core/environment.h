// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ladder {

// Environment variables: settings of launchers (torchrun, mpirun, srun) and of users.
//
// An empty variable counts as unset, as in `RANK= ./program`. These functions only read, so they
// are safe while no thread changes the environment.

// The text of a variable, or nothing if it is unset or empty.
std::optional<std::string> environment_variable(const std::string& name);

// The value of a variable that must hold a whole number of at least `minimum`.
// Throws UsageError naming the variable if it holds anything else.
std::optional<std::int64_t> environment_integer(const std::string& name, std::int64_t minimum);

// The values of a variable with a list of such numbers, separated by commas, as in OMP_NUM_THREADS
// ("4,1": four threads, and one in each nested region). Blanks around a number are allowed. Empty
// if the variable is unset; throws UsageError like environment_integer.
std::vector<std::int64_t> environment_integers(const std::string& name, std::int64_t minimum);

// The variables in which a launcher sets ranks and their number.
struct LauncherVariables {
  std::string_view launcher;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
};

inline constexpr std::array<LauncherVariables, 5> kLauncherVariables = {{
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"mpirun", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE"},
    {"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"},
}};

}  // namespace ladder
