// SPDX-License-Identifier: Apache-2.0
#include "mnist/networks.h"

#include <fmt/core.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>
#include <torch/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/nn/batch_norm.h"
#include "ladder/nn/channels_last.h"
#include "ladder/nn/dropout.h"
#include "ladder/nn/linear.h"
#include "ladder/nn/model.h"
#include "ladder/nn/ops.h"

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

class LayeredModel : public Model {
 public:
  explicit LayeredModel(const NetworkOptions& options) : options_(options) {}

  void keep_layers(int stage, int stages) {
    const auto drops = drop_layer();
    const int layers = static_cast<int>(drops.size());
    if (stages > layers) {
      throw UsageError::out_of_range("pipeline", stages,
                                     fmt::format("at most {} stages, one per layer", layers),
                                     fmt::format("use --nprocs {}", layers));
    }
    for (int layer = 0; layer < layers; ++layer) {
      const bool is_kept =
          layers * stage / stages <= layer && layer < layers * (stage + 1) / stages;
      if (!is_kept) drops[static_cast<std::size_t>(layer)]();
    }
    options_.stage = stage;
    options_.stages = stages;
  }

 protected:
  bool is_fast() const { return options_.math == Math::kFast; }

  // One per layer: each drops its modules.
  virtual std::vector<std::function<void()>> drop_layer() = 0;

  template <typename Module>
  void drop(const char* name, Module& module) {
    unregister_module(name);
    module = nullptr;
  }

  NetworkOptions options_;
};

class BasicNet : public LayeredModel {
 public:
  explicit BasicNet(const NetworkOptions& options)
      : LayeredModel(options),
        conv1_(register_module("conv1", torch::nn::Conv2d(1, 32 * options.width, 3))),
        conv2_(
            register_module("conv2", torch::nn::Conv2d(32 * options.width, 64 * options.width, 3))),
        dropout1_(register_module("dropout1", std::make_shared<Dropout>(DropoutOptions{
                                                  0.25, 1, masks_of(options.math)}))),
        dropout2_(register_module(
            "dropout2", std::make_shared<Dropout>(DropoutOptions{0.5, 2, masks_of(options.math)}))),
        fc1_(register_module("fc1", Linear(9216 * options.width, 128 * options.width))),
        fc2_(register_module("fc2", torch::nn::Linear(128 * options.width, 10))) {
    if (is_fast()) use_channels_last(*this);
    if (options.stages > 1) keep_layers(options.stage, options.stages);
  }

  torch::Tensor forward(const Inputs& inputs) override {
    auto x = inputs.only();
    if (conv1_) x = run_conv1(x);
    if (conv2_) x = dropout1_->forward_flatten(run_conv2(x));
    if (fc1_) {
      x = torch::relu(is_fast() ? fc1_->forward(x) : torch::linear(x, fc1_->weight, fc1_->bias));
      x = dropout2_->forward(x);
    }
    return fc2_ ? apply_head(fc2_->forward(x), options_.head) : x;
  }

  std::shared_ptr<Model> new_like() const override { return new_network_like(*this, options_); }

 private:
  torch::Tensor run_conv1(const torch::Tensor& images) {
    const auto x = is_fast() ? to_channels_last(images) : images;
    if (!is_fast() || !x.is_cpu()) return torch::relu(conv1_->forward(x));
    return ops().first_conv2d(x, conv1_->weight, conv1_->bias, 0, Activation::kRelu);
  }

  torch::Tensor run_conv2(const torch::Tensor& input) {
    const auto x = is_fast() ? to_channels_last(input) : input;
    if (!is_fast() || !x.is_cpu()) return torch::max_pool2d(torch::relu(conv2_->forward(x)), 2);
    return ops().conv2d_relu_max_pool2d(x, conv2_->weight, conv2_->bias);
  }

  std::vector<std::function<void()>> drop_layer() override {
    return {[this] { drop("conv1", conv1_); },
            [this] {
              drop("conv2", conv2_);
              drop("dropout1", dropout1_);
            },
            [this] {
              drop("fc1", fc1_);
              drop("dropout2", dropout2_);
            },
            [this] { drop("fc2", fc2_); }};
  }

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

class ConvNet : public LayeredModel {
 public:
  explicit ConvNet(const NetworkOptions& options)
      : LayeredModel(options),
        layer1_(register_module("layer1", conv_layer(1, 16 * options.width))),
        layer2_(register_module("layer2", conv_layer(16 * options.width, 32 * options.width))),
        fc_(register_module("fc", torch::nn::Linear(1568 * options.width, 10))) {
    if (is_fast()) use_channels_last(*this);
    if (options.stages > 1) keep_layers(options.stage, options.stages);
  }

  torch::Tensor forward(const Inputs& inputs) override {
    auto x = inputs.only();
    if (layer1_) x = run_layer1(x);
    if (layer2_) x = run_layer2(x);
    return fc_ ? apply_head(fc_->forward(torch::flatten(x, 1)), options_.head) : x;
  }

  std::shared_ptr<Model> new_like() const override { return new_network_like(*this, options_); }

 private:
  torch::Tensor run_layer1(const torch::Tensor& images) {
    const auto x = is_fast() ? to_channels_last(images) : images;
    if (!is_fast() || !x.is_cpu()) return layer1_->forward(x);
    const auto& conv = layer1_->at<torch::nn::Conv2dImpl>(0);
    return layer1_->at<BatchNormImpl>(1).forward_relu_max_pool2d(
        ops().first_conv2d(x, conv.weight, conv.bias, 2, Activation::kNone));
  }

  torch::Tensor run_layer2(const torch::Tensor& input) {
    const auto x = is_fast() ? to_channels_last(input) : input;
    if (!is_fast() || !x.is_cpu()) return layer2_->forward(x);
    const auto& conv = layer2_->at<torch::nn::Conv2dImpl>(0);
    auto& norm = layer2_->at<BatchNormImpl>(1);
    if (!is_training()) {
      return norm.forward_relu_max_pool2d(torch::conv2d(x, conv.weight, conv.bias, 1, 2));
    }
    return norm.forward_relu_max_pool2d(torch::conv2d(x, conv.weight, {}, 1, 2), conv.bias);
  }

  std::vector<std::function<void()>> drop_layer() override {
    return {[this] { drop("layer1", layer1_); }, [this] { drop("layer2", layer2_); },
            [this] { drop("fc", fc_); }};
  }

  torch::nn::Sequential layer1_;
  torch::nn::Sequential layer2_;
  torch::nn::Linear fc_;
};

// A residual block of two linear layers.
class StackLayer : public Model {
 public:
  StackLayer(std::int64_t features, Math math)
      : math_(math),
        up_(register_module("up", Linear(features, 4 * features))),
        down_(register_module("down", Linear(4 * features, features))) {}

  torch::Tensor forward(const Inputs& inputs) override {
    const auto& x = inputs.only();
    return x + apply(down_, torch::relu(apply(up_, x)));
  }

 private:
  torch::Tensor apply(Linear& linear, const torch::Tensor& x) const {
    return math_ == Math::kFast ? linear->forward(x)
                                : torch::linear(x, linear->weight, linear->bias);
  }

  Math math_;
  Linear up_;
  Linear down_;
};

class StackNet : public LayeredModel {
 public:
  explicit StackNet(const NetworkOptions& options)
      : LayeredModel(options),
        input_(register_module("input", torch::nn::Linear(784, 256 * options.width))),
        list_(register_module("layers", std::make_shared<torch::nn::Module>())) {
    for (std::int64_t i = 0; i < options.depth; ++i) {
      layers_.push_back(list_->register_module(
          fmt::format("{}", i), std::make_shared<StackLayer>(256 * options.width, options.math)));
    }
    head_ = register_module("head", torch::nn::Linear(256 * options.width, 10));
    if (options.stages > 1) keep_layers(options.stage, options.stages);
  }

  torch::Tensor forward(const Inputs& inputs) override {
    auto x = inputs.only();
    if (input_) x = input_->forward(torch::flatten(x, 1));
    for (const auto& layer : layers_) {
      if (layer) x = (*layer)(x);
    }
    return head_ ? apply_head(head_->forward(x), options_.head) : x;
  }

  std::shared_ptr<Model> new_like() const override { return new_network_like(*this, options_); }

 private:
  std::vector<std::function<void()>> drop_layer() override {
    std::vector<std::function<void()>> drops;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      drops.emplace_back([this, i] {
        list_->unregister_module(fmt::format("{}", i));
        layers_[i] = nullptr;
        if (i == 0) drop("input", input_);
        if (i + 1 == layers_.size()) drop("head", head_);
      });
    }
    return drops;
  }

  torch::nn::Linear input_;
  std::shared_ptr<torch::nn::Module> list_;  // for the names of nn.ModuleList
  std::vector<std::shared_ptr<StackLayer>> layers_;
  torch::nn::Linear head_{nullptr};
};

}  // namespace

std::shared_ptr<Model> make_basic_net(const NetworkOptions& options) {
  return std::make_shared<BasicNet>(options);
}

std::shared_ptr<Model> make_conv_net(const NetworkOptions& options) {
  return std::make_shared<ConvNet>(options);
}

std::shared_ptr<Model> make_stack_net(const NetworkOptions& options) {
  return std::make_shared<StackNet>(options);
}

void keep_layers(Model& network, int stage, int stages) {
  dynamic_cast<LayeredModel&>(network).keep_layers(stage, stages);
}

}  // namespace mnist
