// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <memory>
#include <vector>

#include "ladder/optim/adam_base.h"

namespace ladder {

struct AdamWOptions {
  double lr = 1e-3;            // learning rate; >= 0
  double beta1 = 0.9;          // decay of the mean gradient; in [0, 1)
  double beta2 = 0.999;        // decay of the mean squared gradient; in [0, 1)
  double eps = 1e-8;           // added to the root of the mean square; >= 0
  double weight_decay = 0.01;  // decoupled: weights shrink by lr * weight_decay a step; >= 0
};

// Adam with decoupled weight decay, one fused kernel for all parameters.
//
// torch::optim::AdamW in C++ makes about nine passes over each parameter and differs from
// Python in the last bits. This one calls the kernel behind Python's
// torch.optim.AdamW(..., fused=True): one pass, equal bits.
//
// Works on CPU and CUDA, float32, float64, bfloat16 and float16 parameters of one device and
// dtype; a parameter without a gradient is left alone. It is a torch::optim::Optimizer, so
// zero_grad(), param_groups() and learning-rate schedulers work as usual.
//
// Source: Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019.
class AdamW : public AdamBase {
 public:
  // Throws UsageError when an option is out of its range.
  explicit AdamW(std::vector<torch::Tensor> parameters, AdamWOptions options = {});

 private:
  Numbers numbers_of(const Options& options) const override;
  std::unique_ptr<Options> options_with(const Numbers& numbers) const override;
};

}  // namespace ladder
