// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <memory>

#include "ladder/accelerate/accelerate_config.h"
#include "ladder/accelerate/accelerator_options.h"
#include "ladder/accelerate/gradient_state.h"
#include "ladder/amp/grad_scaler.h"
#include "ladder/comm/process_group.h"
#include "ladder/core/log.h"
#include "ladder/core/threads.h"
#include "ladder/parallel/gradient_reducer.h"

namespace ladder {

// Options of the objects that the Accelerator creates. Python's counterpart: kwargs_handlers.
struct AcceleratorHandlers {
  GradientReducerOptions ddp = {};  // of DistributedDataParallel
  GradScalerOptions scaler = {};    // of fp16; `enabled` follows the precision
};

// What the parts of an Accelerator share: its settings, and what it makes of them.
//
// Python's counterpart: accelerate.state.AcceleratorState.
struct AcceleratorState {
  // Joins the process group: a collective, after any fork. Throws UsageError for contradictory or
  // unsupported settings (see accelerate_config.h).
  AcceleratorState(AcceleratorOptions options, AcceleratorHandlers handlers);

  bool use_distributed() const { return group.world_size() > 1; }
  bool is_mixed() const { return config.mixed_precision != Precision::kFp32; }
  // Of the batches.
  torch::Device batch_device() const { return options.device_placement ? device : torch::kCPU; }

  AcceleratorOptions options;
  AcceleratorHandlers handlers;
  AccelerateConfig config;
  ProcessGroup group;
  Log log;
  ThreadChoice threads;
  torch::Device device;
  std::shared_ptr<GradScaler> scaler;  // enabled for fp16 only
  std::shared_ptr<GradientState> gradients;
};

}  // namespace ladder
