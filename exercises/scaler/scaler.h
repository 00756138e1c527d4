// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>

#include "exercises/exercise.h"
#include "ladder/comm/process_group.h"

namespace ladder::exercises {

// What a scaler remembers from step to step.
struct ScalerState {
  double scale = 65536.0;
  std::int64_t good_steps = 0;          // taken steps in a row since the scale changed
  std::int64_t growth_interval = 2000;  // so many of them double the scale
};

struct Scaler {
  // What to call backward on.
  torch::Tensor (*scaled_loss)(const ScalerState& state, const torch::Tensor& loss);

  // The optimizer's step after that backward, or none. Sets the next scale. Returns whether the
  // step was taken.
  bool (*step)(ScalerState& state, torch::optim::Optimizer& optimizer, const ProcessGroup& group);
};

}  // namespace ladder::exercises
