// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/fused_optimizer.h"

#include <torch/types.h>
#include <torch/utils.h>

namespace ladder {

torch::Tensor FusedOptimizer::step(LossClosure closure) {
  torch::Tensor loss;
  if (closure) {
    const torch::AutoGradMode with_gradients(true);
    loss = closure();
  }
  step_scaled({});
  return loss;
}

void FusedOptimizer::step_scaled(const GradScaling& scaling) {
  const torch::NoGradGuard no_grad;
  for (const auto& group : param_groups_) step_group(group, scaling);
}

std::vector<torch::Tensor> FusedOptimizer::parameters_with_gradient(
    const torch::optim::OptimizerParamGroup& group) {
  std::vector<torch::Tensor> parameters;
  for (const auto& parameter : group.params()) {
    if (parameter.grad().defined()) parameters.push_back(parameter);
  }
  return parameters;
}

}  // namespace ladder
