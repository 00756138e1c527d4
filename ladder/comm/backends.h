// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "ladder/comm/c10d_group.h"
#include "ladder/comm/process_group_options.h"
#include "ladder/core/error.h"
#include "ladder/launch/launch_environment.h"

namespace ladder {

// The table of backends: single, nccl, those that add themselves, gloo.

struct Backend {
  std::string name;  // ProcessGroupOptions::backend

  // Whether these ranks can use it. "auto" selects the first row of the table that suits.
  bool (*suits)(const ProcessGroupOptions& options, const LaunchEnvironment& launch);

  // Waits for all ranks. If they find that they cannot use it, all of them may return another one,
  // with its name in setup.backend.
  MakeBackends make;

  // The error if options.backend is its name, and it does not suit or `make` returned another one.
  UsageError (*refused)(const ProcessGroupOptions& options, const LaunchEnvironment& launch);
};

// The row of options.backend. Throws UsageError for an unknown name, and Backend::refused.
const Backend& find_backend(const ProcessGroupOptions& options, const LaunchEnvironment& launch);
const Backend& find_backend(const std::string& name);

// Adds a row before gloo. `condition`: when "auto" selects it, for help texts.
// Before main(), in a source that ladder/CMakeLists.txt lists as ADDED, which the linker keeps:
//
//     extern "C" const bool ladder_NAME_OF_THE_SOURCE;
//     const bool ladder_NAME_OF_THE_SOURCE = add_backend({...}, "on one machine");
//
// A program adds its own in main(), before init_process_group(). Returns true.
bool add_backend(Backend backend, const std::string& condition);

}  // namespace ladder
