// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <memory>

#include "ladder/nn/dropout.h"
#include "ladder/nn/model.h"
#include "tests/support/training.h"

namespace ladder {

// A network of 500 weights with dropout, for tests of what is the same for every network: those of
// the recipes take ten times as long. It fits the loss of basicnet.
class SmallNet : public Model {
 public:
  explicit SmallNet(DropoutMasks masks = DropoutMasks::kByPosition)
      : masks_(masks),
        dropout_(
            register_module("dropout", std::make_shared<Dropout>(DropoutOptions{.masks = masks}))),
        linear_(register_module("linear", torch::nn::Linear(49, 10))) {}

  torch::Tensor forward(const Inputs& inputs) override {
    const auto small = torch::avg_pool2d(inputs.only(), 4).flatten(1);
    return torch::log_softmax(at_least_float32(linear_->forward(dropout_->forward(small))), 1);
  }
  std::shared_ptr<Model> new_like() const override { return new_network_like(*this, masks_); }

 private:
  DropoutMasks masks_;
  std::shared_ptr<Dropout> dropout_;
  torch::nn::Linear linear_;
};

// With the same weights wherever it is called.
inline std::shared_ptr<Model> small_net(DropoutMasks masks = DropoutMasks::kByPosition) {
  torch::manual_seed(basicnet().seed());
  return std::make_shared<SmallNet>(masks);
}

// How far the gradient of a small_net is from that of one process with this batch.
inline double distance_from_one_process(const torch::nn::Module& model, const Batch& batch) {
  return relative_difference(flat_gradients(model),
                             gradient_of_one_process(small_net(), basicnet(), batch));
}

}  // namespace ladder
