// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <tuple>

#include "ladder/accelerate/function_launcher.h"
#include "mnist/accelerated_options.h"
#include "mnist/main.h"

namespace mnist {

// As in processes.h. Without a launcher, --config-file decides the number of processes.
void choose_processes(AcceleratedOptions& options);
void choose_processes(TrainerRunOptions& options);

// run_main for a program that starts its own processes: calls `run` in each of --num-processes
// processes, or in this one if a launcher has started it. See ladder::function_launcher.
template <typename Options>
int launch_main(int argc, char** argv, const std::function<void(const Options&)>& run) {
  const auto start = [&](const Options& options) {
    if (options.launched) return run(options);
    ladder::function_launcher(run, std::tuple(options), {options.nprocs, options.master_port});
  };
  return run_main<Options>(argc, argv, start);
}

}  // namespace mnist
