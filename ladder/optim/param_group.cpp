// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/param_group.h"

#include <torch/types.h>

namespace ladder {

std::vector<torch::Tensor> parameters_with_gradient(
    const torch::optim::OptimizerParamGroup& group) {
  std::vector<torch::Tensor> parameters;
  for (const auto& parameter : group.params()) {
    if (parameter.grad().defined()) parameters.push_back(parameter);
  }
  return parameters;
}

}  // namespace ladder
