// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>

#include "ladder/comm/process_group.h"
#include "ladder/optim/fused_optimizer.h"

namespace ladder {

// Divides the state of an optimizer among the ranks: stage 1 of ZeRO.
//
// Each rank keeps the state of its part, 1 / world_size of all weights, steps that part alone, and
// gets the other parts from the other ranks. The weights are the same bits as without.
// docs/stages/7-zero-redundancy.md explains it.
//
//     AdamW optimizer(model.parameters());
//     const ZeroRedundancyOptimizer zero(optimizer, group);
//     ...
//     optimizer.step();  // a collective from now on
//
// The parts are equal ranges of all weights in the order of the optimizer's groups, so a large
// parameter may be divided. Gradients stay whole: clipping, GradScaler and other sums of them
// (replicate.h) need no change, and neither do schedules.
//
// Checkpoints have the form of an undivided optimizer, and any number of ranks resumes from them.
// Before state_dict(), all ranks call optimizer.consolidate_state_dict(); save_training_state does.
//
// Source: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter
// models", SC 2020. Python's counterpart: torch.distributed.optim.ZeroRedundancyOptimizer, which
// assigns whole parameters and is an optimizer itself.
class ZeroRedundancyOptimizer {
 public:
  // Call it after Module::to, before DistributedDataParallel or after it, and before the first
  // step: the weights move to one block of memory, of which the parameters are views. The optimizer
  // remains divided when this object ends. A collective in world_size > 1.
  //
  // Throws UsageError for an optimizer of another library, one that has a state or is divided
  // already, and for parameters of several devices or dtypes. DistributedError if the ranks have
  // parameters of other shapes. A step throws UsageError if a parameter has moved to other memory
  // since.
  ZeroRedundancyOptimizer(torch::optim::Optimizer& optimizer, ProcessGroup group);

  // The bytes of this rank's state, and of all ranks' together as long as all have stepped.
  std::int64_t state_bytes() const;

 private:
  class Parts;

  std::shared_ptr<Parts> parts_;
};

}  // namespace ladder
