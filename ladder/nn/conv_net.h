// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <memory>

#include "ladder/nn/model.h"

namespace ladder {

struct ConvNetOptions {
  Head head = Head::kLogits;
  Math math = Math::kFast;
  std::int64_t width = 1;  // times as many channels
};

// The small BatchNorm network of the DDP-practice tutorial.
//
//     [N, 1, 28, 28] -> layer1 -> [N, 16, 14, 14] -> layer2 -> [N, 32, 7, 7] -> fc -> [N, 10]
//
// A layer is convolution 5x5 with padding 2, BatchNorm, ReLU, max-pool 2. 29,034 parameters
// under Python's names (layer1.0.weight, layer1.1.running_mean, ...), built in its order:
// after the same manual_seed the initial weights are bit-equal to Python's.
class ConvNet : public Model {
 public:
  explicit ConvNet(ConvNetOptions options = {});

  torch::Tensor forward(const torch::Tensor& images) override;
  std::shared_ptr<Model> new_like() const override;

 private:
  ConvNetOptions options_;
  torch::nn::Sequential layer1_;
  torch::nn::Sequential layer2_;
  torch::nn::Linear fc_;
};

}  // namespace ladder
