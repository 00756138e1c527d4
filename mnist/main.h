// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "mnist/options.h"

namespace mnist {

// The `main` of every stage: reads the command line, calls `run`, and turns an error into one line
// on the standard error and an exit code (see ladder::ExitCode).
//
//     int main(int argc, char** argv) { return mnist::run_main<Options>(argc, argv, run); }
//
// `Options` is the stage's struct of options.h and decides which flags there are. --gpu becomes
// CUDA_VISIBLE_DEVICES before `run` is called, so before any call into CUDA.
template <typename Options>
int run_main(int argc, char** argv, const std::function<void(const Options&)>& run);

// The same for a program that starts its own processes: calls `run` in each of --num-processes
// processes, or in this one if a launcher has started it. See ladder::function_launcher.
template <typename Options>
int launch_main(int argc, char** argv, const std::function<void(const Options&)>& run);

}  // namespace mnist
