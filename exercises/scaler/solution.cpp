// SPDX-License-Identifier: Apache-2.0
// Exercise 6: scale the loss, and skip the steps that overflow.
#include "exercises/scaler/scaler.h"

namespace {

using namespace ladder;
using namespace ladder::exercises;

// What to call backward on.
torch::Tensor scaled_loss(const ScalerState& state, const torch::Tensor& loss) {
  // solution
  return loss * state.scale;
  // end
}

// Divides the gradients by the scale. Steps, unless a gradient of any rank is inf or NaN. Sets the
// next scale. Returns whether the step was taken.
bool step(ScalerState& state, torch::optim::Optimizer& optimizer, const ProcessGroup& group) {
  // solution
  auto overflow = torch::zeros({});
  for (auto& parameters : optimizer.param_groups()) {
    for (auto& parameter : parameters.params()) {
      auto& gradient = parameter.mutable_grad();
      if (!gradient.defined()) continue;
      gradient /= state.scale;
      if (!torch::isfinite(gradient).all().item<bool>()) overflow.fill_(1.0);
    }
  }
  group.all_reduce(overflow, ReduceOp::kMax);
  if (overflow.item<double>() > 0) {
    state.scale *= 0.5;
    state.good_steps = 0;
    return false;
  }
  optimizer.step();
  ++state.good_steps;
  if (state.good_steps == state.growth_interval) {
    state.scale *= 2.0;
    state.good_steps = 0;
  }
  return true;
  // end
}

const Submission submission(Scaler{scaled_loss, step});

}  // namespace
