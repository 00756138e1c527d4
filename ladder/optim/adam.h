// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <memory>
#include <vector>

#include "ladder/optim/adam_base.h"

namespace ladder {

struct AdamOptions {
  double lr = 1e-3;           // learning rate; >= 0
  double beta1 = 0.9;         // decay of the mean gradient; in [0, 1)
  double beta2 = 0.999;       // decay of the mean squared gradient; in [0, 1)
  double eps = 1e-8;          // added to the root of the mean square; >= 0
  double weight_decay = 0.0;  // added to the gradient, times the weight; >= 0
};

// Steps of about `lr` for every weight, however large its gradients are: a step is the mean
// gradient over the root of the mean squared gradient. One fused kernel for all parameters: the
// kernel behind Python's torch.optim.Adam(..., fused=True), with equal bits.
//
// With weight decay AdamW is the better choice: here the decay is part of the gradient and is
// divided by the root too. Without it both are the same.
//
// Devices, dtypes and missing gradients as AdamW. It is a torch::optim::Optimizer.
//
// Source: Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015.
class Adam : public AdamBase {
 public:
  // Throws UsageError when an option is out of its range.
  explicit Adam(std::vector<torch::Tensor> parameters, AdamOptions options = {});

 private:
  Numbers numbers_of(const Options& options) const override;
  std::unique_ptr<Options> options_with(const Numbers& numbers) const override;
};

}  // namespace ladder
