// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <utility>

#include "ladder/kernels/onednn_linear.h"

namespace ladder {

// As torch.nn.Linear, parameters, names and initial values included, by onednn_linear().
class LinearImpl : public torch::nn::LinearImpl {
 public:
  using torch::nn::LinearImpl::LinearImpl;

  // Input [N, in_features]; returns [N, out_features].
  torch::Tensor forward(const torch::Tensor& input) {
    return onednn_linear(input, weight, bias, products_);
  }

  // Backwards of later forwards put the weight gradient there, where onednn_linear() can; nullptr:
  // nowhere.
  void keep_products(c10::intrusive_ptr<WeightProducts> products) {
    products_ = std::move(products);
  }

 private:
  c10::intrusive_ptr<WeightProducts> products_;
};
TORCH_MODULE(Linear);

}  // namespace ladder
