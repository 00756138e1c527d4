// SPDX-License-Identifier: Apache-2.0
#include "ladder/nn/basic_net.h"

#include <torch/types.h>

#include "ladder/nn/memory_format.h"
#include "ladder/nn/onednn_linear.h"
#include "ladder/nn/relu_max_pool.h"

namespace ladder {

BasicNet::BasicNet(BasicNetOptions options)
    : options_(options),
      conv1_(register_module("conv1", torch::nn::Conv2d(1, 32 * options.width, 3))),
      conv2_(
          register_module("conv2", torch::nn::Conv2d(32 * options.width, 64 * options.width, 3))),
      dropout1_(register_module("dropout1",
                                std::make_shared<Dropout>(DropoutOptions{0.25, 1, options.math}))),
      dropout2_(register_module("dropout2",
                                std::make_shared<Dropout>(DropoutOptions{0.5, 2, options.math}))),
      fc1_(register_module("fc1", torch::nn::Linear(9216 * options.width, 128 * options.width))),
      fc2_(register_module("fc2", torch::nn::Linear(128 * options.width, 10))) {
  if (options_.math == Math::kFast) use_channels_last(*this);
}

torch::Tensor BasicNet::forward(const torch::Tensor& images) {
  const bool fast = options_.math == Math::kFast;
  auto x = fast ? to_channels_last(images) : images;
  x = conv1_->forward(x);
  x = fast ? torch::relu_(x) : torch::relu(x);
  x = fast && x.is_cpu() ? relu_max_pool2d(torch::conv2d(x, conv2_->weight), conv2_->bias)
                         : torch::max_pool2d(torch::relu(conv2_->forward(x)), 2);
  x = dropout1_->forward_flatten(x);
  x = torch::relu(fast ? onednn_linear(x, fc1_->weight, fc1_->bias) : fc1_->forward(x));
  x = dropout2_->forward(x);
  return apply_head(fc2_->forward(x), options_.head);
}

std::shared_ptr<Model> BasicNet::new_like() const { return new_network_like(*this, options_); }

}  // namespace ladder
