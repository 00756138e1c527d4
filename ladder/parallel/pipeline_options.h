// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace ladder {

// The order in which a stage computes the micro-batches of a step.
enum class PipelineSchedule {
  k1F1B,   // one forward, one backward: of at most as many as there are stages
  kGPipe,  // all forwards, then all backwards: keeps the activations of all micro-batches
};

struct PipelineOptions {
  std::int64_t micro_batches = 4;  // per batch; >= 1
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
};

}  // namespace ladder
