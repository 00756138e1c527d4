// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "ladder/stage/run_options.h"

namespace ladder {

// The `main` of every stage: reads the command line, calls `run`, and turns what went wrong
// into one line on the standard error and an exit code (see ExitCode).
//
//     int main(int argc, char** argv) { return ladder::run_main(argc, argv, run); }
//
// `stage` says which flags the stage has of its own.
//
// --gpu becomes CUDA_VISIBLE_DEVICES before `run` is called, so before any call into CUDA.
int run_main(int argc, char** argv, const std::function<void(const RunOptions&)>& run,
             const StageFlags& stage = {});

// The same for a program that starts its own processes: calls `run` in each of as many as
// --num-processes says, or in this one if somebody else has started it. `stage` gets the flags for
// both. See function_launcher.
int launch_main(int argc, char** argv, const std::function<void(const RunOptions&)>& run,
                StageFlags stage);

}  // namespace ladder
