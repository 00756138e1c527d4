// SPDX-License-Identifier: Apache-2.0
// Exercise 18: how long the stages of a pipeline wait.
#include "exercises/bubble/bubble.h"

#include <algorithm>

namespace {

using namespace ladder::exercises;

// The seconds of a step with equal stages.
double step_seconds(int stages, int micro_batches, const StageCost& cost) {
  // solution
  return (micro_batches + stages - 1) * (cost.forward + cost.backward);
  // end
}

// The part of the step, 0 to 1, in which such a stage waits.
double idle_share(int stages, int micro_batches) {
  // solution
  return (stages - 1.0) / (micro_batches + stages - 1);
  // end
}

// The fewest micro-batches with an idle share of at most `share`.
int fewest_micro_batches(int stages, double share) {
  // solution
  int count = 1;
  while (idle_share(stages, count) > share) ++count;
  return count;
  // end
}

// The seconds of a step with stages that differ, the first one first.
double uneven_step_seconds(const std::vector<StageCost>& stages, int micro_batches) {
  // solution
  StageCost sum;
  StageCost slowest;
  for (const auto& stage : stages) {
    sum.forward += stage.forward;
    sum.backward += stage.backward;
    slowest.forward = std::max(slowest.forward, stage.forward);
    slowest.backward = std::max(slowest.backward, stage.backward);
  }
  return sum.forward + sum.backward + (micro_batches - 1) * (slowest.forward + slowest.backward);
  // end
}

const Submission submission(Bubble{step_seconds, idle_share, fewest_micro_batches,
                                   uneven_step_seconds});

}  // namespace
