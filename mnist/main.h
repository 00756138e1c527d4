// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

#include "mnist/command_line.h"
#include "mnist/options.h"
#include "mnist/processes.h"

namespace mnist {

// Calls `body`, and turns an error into one line on the standard error and an exit code (see
// ladder::ExitCode).
int report_errors(const std::function<void()>& body);

// One line for --help and --version, on the standard output.
void print_text(std::string_view text);

// The `main` of every stage: reads the command line, chooses GPUs and processes, and calls `run`.
//
//     int main(int argc, char** argv) { return mnist::run_main<Options>(argc, argv, run); }
//
// `Options` is the stage's struct of options.h and decides which flags there are. --gpu becomes
// CUDA_VISIBLE_DEVICES before `run` is called, so before any call into CUDA.
template <typename Options>
int run_main(int argc, char** argv, const std::function<void(const Options&)>& run) {
  return report_errors([&] {
    auto command_line = parse_command_line<Options>(argc, argv);
    if (!command_line.options) return print_text(command_line.text);
    choose_processes(*command_line.options);
    run(*command_line.options);
  });
}

}  // namespace mnist
