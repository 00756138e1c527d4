// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tuple>
#include <type_traits>

#include "ladder/launch/spawn.h"

namespace ladder {

struct FunctionLauncherOptions {
  int num_processes = 1;  // 1: calls the function in this process
  int master_port = 0;    // rendezvous port; 0 picks a free one
};

// Runs a training function in several processes:
//
//     void train(const std::string& data, double lr) { Accelerator accelerator; ... }
//
//     function_launcher(train, std::tuple("data/train", 1e-3), {.num_processes = 2});
//
// Arguments that do not fit the function are a compile-time error; Python's launcher reports them
// at run time, from each process. It starts processes by spawn, and throws the same errors: for a
// failed process, and if this process has used a tensor or a GPU. Until then it can be called
// repeatedly. With one process the function runs in this process, and spawn's conditions do not
// apply; afterwards no more processes can be launched.
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
