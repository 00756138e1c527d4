// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <utility>

#include "ladder/nn/ops.h"

namespace ladder {

// As torch.nn.Linear, parameters, names and initial values included, by ops().linear.
class LinearImpl : public torch::nn::LinearImpl {
 public:
  using torch::nn::LinearImpl::LinearImpl;

  // Input [N, in_features]; returns [N, out_features].
  torch::Tensor forward(const torch::Tensor& input) {
    return ops().linear(input, weight, bias, products_);
  }

  // Backwards of later forwards put the weight gradient there, where ops().linear can; nullptr:
  // nowhere.
  void keep_products(c10::intrusive_ptr<torch::CustomClassHolder> products) {
    products_ = std::move(products);
  }

 private:
  c10::intrusive_ptr<torch::CustomClassHolder> products_;
};
TORCH_MODULE(Linear);

}  // namespace ladder
