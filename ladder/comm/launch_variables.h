// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "ladder/comm/launch_environment.h"

namespace ladder {

// What the readers of launch_environment.h share: variables as numbers, and what one launcher says.

// The variables behind a lookup. One that is set to nothing counts as unset. The lookup must
// outlive this object.
class Variables {
 public:
  explicit Variables(const VariableLookup& lookup) : lookup_(&lookup) {}

  std::optional<std::string> text(const std::string& name) const;
  bool has(const std::string& name) const { return text(name).has_value(); }

  // The value of a variable that must hold a whole number, both bounds included. Throws
  // UsageError naming it if it holds anything else.
  std::optional<std::int64_t> number(const std::string& name, std::int64_t minimum,
                                     std::int64_t maximum = INT64_MAX) const;
  std::optional<int> integer(const std::string& name, int minimum, int maximum = INT32_MAX) const;

  // The first of `names` that is set, or "" if none is.
  std::string first_set(std::initializer_list<const char*> names) const;

 private:
  const VariableLookup* lookup_;
};

// A value, and the variable or flag that said it ("" if nobody did and it is a default).
template <typename T>
struct Sourced {
  std::string name;
  T value;
};

// The place of this process as one launcher says it.
struct Place {
  std::string launcher;
  Sourced<int> rank;
  Sourced<int> world_size;
  std::optional<int> local_rank;        // nothing: the launcher does not say
  std::optional<int> local_world_size;  // the same
  std::string local_rank_name;          // for messages
  std::string local_world_size_name;
  std::string without;    // the command that hides this launcher from a program: "env -u ..."
  bool in_shell = false;  // a shell of srun --pty: a person typed the program's name there
};

}  // namespace ladder
