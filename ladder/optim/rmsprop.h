// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <memory>
#include <vector>

#include "ladder/optim/fused_optimizer.h"

namespace ladder {

struct RMSpropOptions {
  double lr = 1e-2;           // learning rate; >= 0
  double alpha = 0.99;        // decay of the mean squared gradient; >= 0
  double eps = 1e-8;          // added to the root of the mean square; >= 0
  double weight_decay = 0.0;  // added to the gradient, times the weight; >= 0
  double momentum = 0.0;      // factor of the earlier steps; >= 0
  bool centered = false;      // divide by the standard deviation instead of the root mean square
};

// Divides each gradient by the root of a moving mean of its squares, so that every weight moves by
// about `lr`: Adam without the mean gradient.
//
// There is no fused kernel. For each parameter the operations of Python's
// torch.optim.RMSprop(..., foreach=False) run in the same order, with equal bits. A scaled step
// multiplies the gradients by 1 / scale, as Python's GradScaler does around such an optimizer. It
// does not wait for the GPU to read whether one is not finite: it computes the step, and then
// chooses between the new values and a copy of the old ones.
//
// Devices, dtypes and missing gradients as AdamW. It is a torch::optim::Optimizer.
//
// Source: Hinton, "Neural networks for machine learning", lecture 6, 2012; centered: Graves,
// "Generating sequences with recurrent neural networks", 2013.
class RMSprop : public OptimizerOf<RMSpropOptions> {
 public:
  // Throws UsageError when an option is out of its range.
  explicit RMSprop(std::vector<torch::Tensor> parameters, RMSpropOptions options = {});

 private:
  void step_group(const torch::optim::OptimizerParamGroup& group,
                  const GradScaling& scaling) override;
  StateDict new_state(const Options& options, const torch::Tensor& parameter) const override;
};

}  // namespace ladder
