// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <memory>

#include "ladder/nn/model.h"

namespace ladder {

struct TwoLayersOptions {
  bool tied = false;    // one layer under both names
  bool frozen = false;  // the first layer, in the constructor
  bool scalar = false;  // the output is a mean
};

// Two layers, all weights 0.5.
struct TwoLayers : Model {
  explicit TwoLayers(TwoLayersOptions with = {}) : options(with) {
    a = register_module("a", torch::nn::Linear(2, 2));
    b = register_module("b", options.tied ? a : torch::nn::Linear(2, 2));
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) parameter.fill_(0.5);
    for (auto& parameter : a->parameters()) parameter.set_requires_grad(!options.frozen);
  }
  torch::Tensor forward(const Inputs& inputs) override {
    const auto output = b->forward(torch::tanh(a->forward(inputs.only())));
    return options.scalar ? output.mean() : output;
  }
  std::shared_ptr<Model> new_like() const override { return new_network_like(*this, options); }

  TwoLayersOptions options;
  torch::nn::Linear a{nullptr};
  torch::nn::Linear b{nullptr};
};

}  // namespace ladder
