// SPDX-License-Identifier: Apache-2.0
#include "mnist/networks.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>
#include <torch/types.h>

#include "ladder/kernels/channels_last.h"
#include "ladder/kernels/conv_relu_max_pool.h"
#include "ladder/kernels/first_conv2d.h"
#include "ladder/nn/batch_norm.h"
#include "ladder/nn/dropout.h"
#include "ladder/nn/linear.h"
#include "ladder/nn/model.h"

namespace mnist {
namespace {

using namespace ladder;

DropoutMasks masks_of(Math math) {
  return math == Math::kFast ? DropoutMasks::kByPosition : DropoutMasks::kByGenerator;
}

// In float32 also under autocast, where the last layer computes in 16 bits.
torch::Tensor apply_head(const torch::Tensor& scores, Head head) {
  const auto x = at_least_float32(scores);
  return head == Head::kLogSoftmax ? torch::log_softmax(x, 1) : x;
}

class BasicNet : public Model {
 public:
  explicit BasicNet(NetworkOptions options)
      : options_(options),
        conv1_(register_module("conv1", torch::nn::Conv2d(1, 32 * options.width, 3))),
        conv2_(
            register_module("conv2", torch::nn::Conv2d(32 * options.width, 64 * options.width, 3))),
        dropout1_(register_module("dropout1", std::make_shared<Dropout>(DropoutOptions{
                                                  0.25, 1, masks_of(options.math)}))),
        dropout2_(register_module(
            "dropout2", std::make_shared<Dropout>(DropoutOptions{0.5, 2, masks_of(options.math)}))),
        fc1_(register_module("fc1", Linear(9216 * options.width, 128 * options.width))),
        fc2_(register_module("fc2", torch::nn::Linear(128 * options.width, 10))) {
    if (options_.math == Math::kFast) use_channels_last(*this);
  }

  torch::Tensor forward(const Inputs& inputs) override {
    const bool fast = options_.math == Math::kFast;
    const auto& images = inputs.only();
    auto x = fast ? to_channels_last(images) : images;
    if (fast && x.is_cpu()) {
      x = first_conv2d(x, conv1_->weight, conv1_->bias, 0, Activation::kRelu);
      x = conv2d_relu_max_pool2d(x, conv2_->weight, conv2_->bias);
    } else {
      x = torch::relu(conv1_->forward(x));
      x = torch::max_pool2d(torch::relu(conv2_->forward(x)), 2);
    }
    x = dropout1_->forward_flatten(x);
    x = torch::relu(fast ? fc1_->forward(x) : torch::linear(x, fc1_->weight, fc1_->bias));
    x = dropout2_->forward(x);
    return apply_head(fc2_->forward(x), options_.head);
  }

  std::shared_ptr<Model> new_like() const override { return new_network_like(*this, options_); }

 private:
  NetworkOptions options_;
  torch::nn::Conv2d conv1_;
  torch::nn::Conv2d conv2_;
  std::shared_ptr<Dropout> dropout1_;
  std::shared_ptr<Dropout> dropout2_;
  Linear fc1_;
  torch::nn::Linear fc2_;
};

torch::nn::Sequential conv_layer(std::int64_t in_channels, std::int64_t out_channels) {
  return torch::nn::Sequential(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(in_channels, out_channels, 5).padding(2)),
      BatchNorm(BatchNormOptions{.features = out_channels}), torch::nn::ReLU(),
      torch::nn::MaxPool2d(2));
}

class ConvNet : public Model {
 public:
  explicit ConvNet(NetworkOptions options)
      : options_(options),
        layer1_(register_module("layer1", conv_layer(1, 16 * options.width))),
        layer2_(register_module("layer2", conv_layer(16 * options.width, 32 * options.width))),
        fc_(register_module("fc", torch::nn::Linear(1568 * options.width, 10))) {
    if (options_.math == Math::kFast) use_channels_last(*this);
  }

  torch::Tensor forward(const Inputs& inputs) override {
    const bool fast = options_.math == Math::kFast;
    const auto& images = inputs.only();
    auto x = fast ? to_channels_last(images) : images;
    if (fast && x.is_cpu()) {
      const auto& conv1 = layer1_->at<torch::nn::Conv2dImpl>(0);
      x = first_conv2d(x, conv1.weight, conv1.bias, 2, Activation::kNone);
      x = layer1_->at<BatchNormImpl>(1).forward_relu_max_pool2d(x);
      const auto& conv2 = layer2_->at<torch::nn::Conv2dImpl>(0);
      auto& norm2 = layer2_->at<BatchNormImpl>(1);
      x = is_training()
              ? norm2.forward_relu_max_pool2d(torch::conv2d(x, conv2.weight, {}, 1, 2), conv2.bias)
              : norm2.forward_relu_max_pool2d(torch::conv2d(x, conv2.weight, conv2.bias, 1, 2));
    } else {
      x = layer2_->forward(layer1_->forward(x));
    }
    return apply_head(fc_->forward(torch::flatten(x, 1)), options_.head);
  }

  std::shared_ptr<Model> new_like() const override { return new_network_like(*this, options_); }

 private:
  NetworkOptions options_;
  torch::nn::Sequential layer1_;
  torch::nn::Sequential layer2_;
  torch::nn::Linear fc_;
};

}  // namespace

std::shared_ptr<Model> make_basic_net(const NetworkOptions& options) {
  return std::make_shared<BasicNet>(options);
}

std::shared_ptr<Model> make_conv_net(const NetworkOptions& options) {
  return std::make_shared<ConvNet>(options);
}

}  // namespace mnist
