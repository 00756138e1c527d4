// SPDX-License-Identifier: Apache-2.0
#include "ladder/nn/conv_net.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/pooling.h>
#include <torch/types.h>

#include "ladder/nn/batch_norm.h"
#include "ladder/nn/memory_format.h"

namespace ladder {
namespace {

torch::nn::Sequential conv_layer(std::int64_t in_channels, std::int64_t out_channels) {
  return torch::nn::Sequential(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(in_channels, out_channels, 5).padding(2)),
      BatchNorm(BatchNormOptions{.features = out_channels}), torch::nn::ReLU(),
      torch::nn::MaxPool2d(2));
}

// A layer as two operations: all behind the convolution is one.
torch::Tensor forward_fast(torch::nn::Sequential& layer, const torch::Tensor& input) {
  const auto images = layer->at<torch::nn::Conv2dImpl>(0).forward(input);
  return layer->at<BatchNormImpl>(1).forward_relu_max_pool2d(images);
}

}  // namespace

ConvNet::ConvNet(ConvNetOptions options)
    : options_(options),
      layer1_(register_module("layer1", conv_layer(1, 16 * options.width))),
      layer2_(register_module("layer2", conv_layer(16 * options.width, 32 * options.width))),
      fc_(register_module("fc", torch::nn::Linear(1568 * options.width, 10))) {
  if (options_.math == Math::kFast) use_channels_last(*this);
}

torch::Tensor ConvNet::forward(const torch::Tensor& images) {
  const bool fast = options_.math == Math::kFast;
  auto x = fast ? to_channels_last(images) : images;
  x = fast ? forward_fast(layer1_, x) : layer1_->forward(x);
  x = fast ? forward_fast(layer2_, x) : layer2_->forward(x);
  return apply_head(fc_->forward(torch::flatten(x, 1)), options_.head);
}

std::shared_ptr<Model> ConvNet::new_like() const { return new_network_like(*this, options_); }

}  // namespace ladder
