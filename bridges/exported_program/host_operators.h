// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "bridges/exported_program/graph.h"

namespace ladder::exported {

// An operator of Python on sizes, such as "_operator.mul", by its name in a .pt2 file. It replaces
// its arguments on the stack by the result. Nothing for an unknown name.
struct HostOperator {
  std::size_t arguments = 0;
  std::function<void(Values& stack)> run;
};
std::optional<HostOperator> find_host_operator(std::string_view name);

}  // namespace ladder::exported
