// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <memory>
#include <vector>

#include "ladder/optim/fused_optimizer.h"

namespace ladder {

struct AdagradOptions {
  double lr = 1e-2;           // learning rate; >= 0
  double lr_decay = 0.0;      // the rate of step n is lr / (1 + (n - 1) * lr_decay); >= 0
  double weight_decay = 0.0;  // added to the gradient, times the weight; >= 0
  double initial_accumulator_value = 0.0;  // the sum of squares before the first step; >= 0
  double eps = 1e-10;                      // added to the root of the sum; >= 0
};

// Divides each gradient by the root of the sum of all squared gradients so far: weights with few
// gradients take large steps, and all steps get smaller with time. One fused kernel for all
// parameters: the kernel behind Python's torch.optim.Adagrad(..., fused=True), with equal bits.
//
// A parameter has no state before its first gradient. Devices, dtypes and missing gradients as
// AdamW. It is a torch::optim::Optimizer.
//
// Source: Duchi et al., "Adaptive subgradient methods for online learning and stochastic
// optimization", JMLR 12, 2011.
class Adagrad : public OptimizerOf<AdagradOptions> {
 public:
  // Throws UsageError when an option is out of its range.
  explicit Adagrad(std::vector<torch::Tensor> parameters, AdagradOptions options = {});

 private:
  void step_group(const torch::optim::OptimizerParamGroup& group,
                  const GradScaling& scaling) override;
  StateDict new_state(const Options& options, const torch::Tensor& parameter) const override;
};

}  // namespace ladder
