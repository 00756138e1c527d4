// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <memory>

#include "ladder/nn/dropout.h"
#include "ladder/nn/model.h"

namespace ladder {

struct BasicNetOptions {
  Head head = Head::kLogSoftmax;
  Math math = Math::kFast;
  std::int64_t width = 1;  // times as many channels and hidden units
};

// The network of the PyTorch MNIST example: two convolutions, two linear layers, dropout.
//
//     [N, 1, 28, 28] -> conv1, relu -> [N, 32, 26, 26] -> conv2, relu -> [N, 64, 24, 24]
//       -> max-pool 2, dropout 0.25 -> [N, 64, 12, 12] -> flatten -> fc1, relu, dropout 0.5
//       -> [N, 128] -> fc2, log-softmax -> [N, 10]
//
// 1,199,882 parameters under the names that Python's BasicNet has (conv1, conv2, fc1, fc2),
// built in its order: after the same manual_seed the initial weights are bit-equal to Python's.
class BasicNet : public Model {
 public:
  explicit BasicNet(BasicNetOptions options = {});

  torch::Tensor forward(const torch::Tensor& images) override;
  std::shared_ptr<Model> new_like() const override;

 private:
  BasicNetOptions options_;
  torch::nn::Conv2d conv1_;
  torch::nn::Conv2d conv2_;
  std::shared_ptr<Dropout> dropout1_;
  std::shared_ptr<Dropout> dropout2_;
  torch::nn::Linear fc1_;
  torch::nn::Linear fc2_;
};

}  // namespace ladder
