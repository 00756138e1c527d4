// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <functional>
#include <string>

#include "ladder/comm/process_group.h"
#include "ladder/core/precision.h"
#include "ladder/core/threads.h"

namespace ladder {

// How a run writes checkpoints, if it does; Accelerator::setup fills it in. Each returns a folder.
struct CheckpointHooks {
  std::function<std::string()> save;  // a collective; empty = a run that is stopped saves nothing
  std::function<std::string()> last;  // the last one written or loaded, or ""; may be empty
};

// Where and how a run computes: the choices that its program has made.
struct RunSetup {
  ProcessGroup group = ProcessGroup::single();
  torch::Device device = torch::kCPU;
  Precision precision = Precision::kFp32;
  ThreadChoice threads = {1, ""};  // of this process, and the source of the number
  CheckpointHooks checkpoints = {};
};

}  // namespace ladder
