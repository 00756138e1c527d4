// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <vector>

namespace ladder {

// Finite differences: along a random direction of each argument, the loss must change by what its
// gradient says. `loss` takes the arguments, float32, and returns a float64 scalar.
template <typename Loss>
void expect_gradients_are_slopes(const std::vector<torch::Tensor>& at, const Loss& loss) {
  std::vector<torch::Tensor> leaves;
  for (const auto& tensor : at) leaves.push_back(tensor.detach().clone().requires_grad_());
  loss(leaves).backward();
  torch::manual_seed(5);
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const auto step = torch::randn_like(leaves[i]) * 1e-3;
    auto up = leaves;
    auto down = leaves;
    up[i] = leaves[i] + step;
    down[i] = leaves[i] - step;
    const double slope = (loss(up) - loss(down)).template item<double>() / 2.0;
    const double wanted = (leaves[i].grad() * step).sum().template item<double>();
    EXPECT_NEAR(slope, wanted, 0.02 * std::abs(wanted) + 1e-5) << "argument " << i;
  }
}

}  // namespace ladder
