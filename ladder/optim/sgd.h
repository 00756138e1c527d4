// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <memory>
#include <vector>

#include "ladder/optim/fused_optimizer.h"

namespace ladder {

struct SgdOptions {
  double lr = 1e-3;           // learning rate; >= 0
  double momentum = 0.0;      // factor of the earlier steps; >= 0
  double dampening = 0.0;     // 1 - dampening is the factor of the gradient in the momentum
  double weight_decay = 0.0;  // added to the gradient, times the weight; >= 0
  bool nesterov = false;      // Nesterov momentum; needs momentum > 0 and dampening 0
};

// Stochastic gradient descent, one fused kernel for all parameters: the kernel behind
// Python's torch.optim.SGD(..., fused=True), with equal bits.
//
// With momentum, scaled steps wait for the GPU until the first one is applied: a skipped step must
// not create a momentum.
//
// Devices, dtypes and missing gradients as AdamW. It is a torch::optim::Optimizer.
class SGD : public OptimizerOf<SgdOptions> {
 public:
  // Throws UsageError when an option is out of its range.
  explicit SGD(std::vector<torch::Tensor> parameters, SgdOptions options = {});

 private:
  void step_group(const torch::optim::OptimizerParamGroup& group,
                  const GradScaling& scaling) override;
  bool can_use_device_rates() const override { return true; }
  std::unique_ptr<Options> options_from(const JsonReader& saved) const override;
  StateDict new_state(const Options& options, const torch::Tensor& parameter) const override;
  void step_parameters(const std::vector<torch::Tensor>& parameters,
                       const torch::optim::OptimizerParamGroup& group, const GradScaling& scaling,
                       bool is_first_step);
};

}  // namespace ladder
