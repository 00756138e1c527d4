// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "exercises/exercise.h"

namespace ladder::exercises {

// What a stage takes for one micro-batch, in seconds.
struct StageCost {
  double forward = 0;
  double backward = 0;
};

struct Bubble {
  // The seconds of a step with equal stages.
  double (*step_seconds)(int stages, int micro_batches, const StageCost& cost);

  // The part of the step, 0 to 1, in which such a stage waits.
  double (*idle_share)(int stages, int micro_batches);

  // The fewest micro-batches with an idle share of at most `share`.
  int (*fewest_micro_batches)(int stages, double share);

  // The seconds of a step with stages that differ, the first one first.
  double (*uneven_step_seconds)(const std::vector<StageCost>& stages, int micro_batches);
};

}  // namespace ladder::exercises
