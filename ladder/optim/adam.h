// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <memory>
#include <vector>

#include "ladder/optim/fused_optimizer.h"

namespace ladder {

struct AdamOptions {
  double lr = 1e-3;           // learning rate; >= 0
  double beta1 = 0.9;         // decay of the mean gradient; in [0, 1)
  double beta2 = 0.999;       // decay of the mean squared gradient; in [0, 1)
  double eps = 1e-8;          // added to the root of the mean square; >= 0
  double weight_decay = 0.0;  // added to the gradient, times the weight; >= 0
};

struct AdamWOptions {
  double lr = 1e-3;            // learning rate; >= 0
  double beta1 = 0.9;          // decay of the mean gradient; in [0, 1)
  double beta2 = 0.999;        // decay of the mean squared gradient; in [0, 1)
  double eps = 1e-8;           // added to the root of the mean square; >= 0
  double weight_decay = 0.01;  // decoupled: weights shrink by lr * weight_decay per step; >= 0
};

// Adam and AdamW. A step is the mean gradient over the root of the mean squared gradient, so every
// weight moves by about `lr`, for small and large gradients. One fused kernel for all parameters.
//
// Adam's weight decay is part of the gradient and is divided by the root too; AdamW's is decoupled
// from it and is the better choice. Without weight decay both are the same.
//
// torch::optim::AdamW in C++ makes about nine passes over each parameter and differs from
// Python in the last bits. These call the kernels behind Python's
// torch.optim.AdamW(..., fused=True) and Adam(..., fused=True): one pass, equal bits.
//
// Works on CPU and CUDA, with float32, float64, bfloat16 and float16 parameters of one device and
// dtype. Parameters without a gradient do not change. It is a torch::optim::Optimizer, so
// zero_grad(), param_groups() and learning-rate schedulers work as usual.
//
// Source: Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015; Loshchilov and
// Hutter, "Decoupled weight decay regularization", ICLR 2019.
template <typename OptionsOfAdam>
class BasicAdam : public OptimizerOf<OptionsOfAdam> {
 public:
  // Throws UsageError when an option is out of its range.
  explicit BasicAdam(std::vector<torch::Tensor> parameters, OptionsOfAdam options = {});

 private:
  using typename FusedOptimizer::Options;

  void step_group(const torch::optim::OptimizerParamGroup& group,
                  const GradScaling& scaling) override;
  bool can_use_device_rates() const override { return true; }
  StateDict new_state(const Options& options, const torch::Tensor& parameter) const override;
};

extern template class BasicAdam<AdamOptions>;
extern template class BasicAdam<AdamWOptions>;

using Adam = BasicAdam<AdamOptions>;
using AdamW = BasicAdam<AdamWOptions>;

}  // namespace ladder
