// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>

#include "ladder/core/error.h"
#include "ladder/launch/launch_environment.h"

namespace ladder {

// The variables behind a lookup. An empty one counts as unset. The lookup must outlive this object.
// The names that launchers set: kLauncherVariables in core/environment.h.
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
  std::function<Sourced<std::string>()> host = {};  // of rank 0; unset: the launcher names none
  std::function<Sourced<int>()> port = {};          // of the store; unset: the default
};

bool same_ranks(const RankPlacement& a, const RankPlacement& b);
UsageError conflicting_launchers(const RankPlacement& inner, const RankPlacement& outer,
                                 const LaunchOptions& options);

// Reads this process as a task of srun, mpirun or another launcher that sets no RANK; nothing if
// none has started it.
using ReadTask = std::optional<RankPlacement> (*)(const Variables& variables,
                                                  const LaunchOptions& options);
// Makes `read` do that from here on; before main(). Returns true. Without one, RANK and its family
// and the options count alone.
bool read_tasks_with(ReadTask read);

}  // namespace ladder
