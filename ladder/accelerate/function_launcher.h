// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tuple>
#include <type_traits>

#include "ladder/launch/spawn.h"

namespace ladder {

struct FunctionLauncherOptions {
  int num_processes = 1;  // 1: the function is called here
  int master_port = 0;    // where the processes meet; 0 = a free port
};

// Runs a training function in several processes, from within a program:
//
//     void train(const std::string& data, double lr) { Accelerator accelerator; ... }
//
//     function_launcher(train, std::tuple("data/train", 1e-3), {.num_processes = 2});
//
// Arguments that do not fit the function are an error of the compiler; Python's launcher reports
// them from within each process. May be called again and again, as long as this process has not
// used a tensor or a GPU itself: that is refused, as are failures of the processes passed on; see
// spawn, which does the work. With one process the function runs in this one, where spawn's
// conditions do not hold, and after which no more can be launched.
//
// Python's counterpart: accelerate.notebook_launcher.
template <typename Function, typename... Arguments>
void function_launcher(const Function& function, const std::tuple<Arguments...>& arguments = {},
                       const FunctionLauncherOptions& options = {}) {
  static_assert(std::is_invocable_v<const Function&, const Arguments&...>,
                "function_launcher: the function cannot be called with these arguments");
  if (options.num_processes == 1) {
    std::apply(function, arguments);
    return;
  }
  spawn([&](int /*rank*/) { std::apply(function, arguments); },
        {.nprocs = options.num_processes, .master_port = options.master_port});
}

}  // namespace ladder
