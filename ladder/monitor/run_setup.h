// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <functional>
#include <string>

#include "ladder/comm/process_group.h"
#include "ladder/core/precision.h"
#include "ladder/core/threads.h"

namespace ladder {

// Both return a folder; Accelerator::setup sets them.
struct CheckpointHooks {
  std::function<std::string()> save;  // a collective, for a stopped run; empty = save nothing
  std::function<std::string()> last;  // the last checkpoint written or loaded, or ""; may be empty
};

// Device, precision, threads, ranks and checkpoints of a run.
struct RunSetup {
  ProcessGroup group = ProcessGroup::single();
  torch::Device device = torch::kCPU;
  Precision precision = Precision::kFp32;
  ThreadChoice threads = {1, ""};  // of this process, and the source of the number
  CheckpointHooks checkpoints = {};
};

}  // namespace ladder
