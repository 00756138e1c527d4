// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "ladder/launch/launch_environment.h"

namespace ladder {

// The variables behind a lookup. An empty one counts as unset. The lookup must outlive this object.
class Variables {
 public:
  explicit Variables(const VariableLookup& lookup) : lookup_(&lookup) {}

  std::optional<std::string> text(const std::string& name) const;
  bool has(const std::string& name) const { return text(name).has_value(); }

  // The value of a variable that must hold a whole number, both bounds included. Throws
  // UsageError naming it if it holds anything else.
  std::optional<std::int64_t> number(const std::string& name, std::int64_t minimum,
                                     std::int64_t maximum = INT64_MAX) const;
  std::optional<int> integer(const std::string& name, int minimum, int maximum = INT32_MAX) const {
    const auto value = number(name, minimum, maximum);
    return value ? std::optional(static_cast<int>(*value)) : std::nullopt;
  }

  // The first of `names` that is set, or "" if none is.
  std::string first_set(std::initializer_list<const char*> names) const;

 private:
  const VariableLookup* lookup_;
};

// A value, and the variable or option that sets it ("" for a default).
template <typename T>
struct Sourced {
  std::string name;
  T value;
};

// The rank of this process and its siblings, as one launcher sets them.
struct RankPlacement {
  std::string launcher;
  Sourced<int> rank;
  Sourced<int> world_size;
  std::optional<int> local_rank;        // unset: the launcher has no variable for it
  std::optional<int> local_world_size;  // the same
  std::string local_rank_name;          // for messages
  std::string local_world_size_name;
  std::string without;    // the command that hides this launcher from a program: "env -u ..."
  bool in_shell = false;  // a shell of srun --pty, in which a user typed the program's name
};

// SLURM: a job is a set of machines for some time; a step is one srun inside it, with tasks
// numbered from 0. Variables of the job (SLURM_NTASKS, SLURM_NODELIST) are also set in batch
// scripts and shells, those of the step only in processes that srun started.

// This process as a task of a step, or nothing if srun did not start it. Throws UsageError if
// variables of the step are missing or malformed.
std::optional<RankPlacement> read_srun(const Variables& variables);

// The first machine of the step, where rank 0 runs: of "host[5-9,12]" it is host5. Throws
// UsageError, with a command for `program`, if there is no such list, or if rank 0 may run
// elsewhere: srun -m arbitrary.
Sourced<std::string> slurm_host(const Variables& variables, const std::string& program);

// A port that two jobs on one machine rarely share, and two steps of one job do not:
// 15000 + (job + 997 * step) % 10000, equal on all ranks. Counterpart: Lightning's default, which
// ignores the step.
Sourced<int> slurm_port(const Variables& variables, const std::string& program);

}  // namespace ladder
