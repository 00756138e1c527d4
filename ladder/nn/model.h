// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <memory>

#include "ladder/data/inputs.h"

namespace ladder {

// A network: turns Inputs into one tensor with one row per sample.
//
// Everything that trains or evaluates takes a `Model&`: your networks, and the wrappers around them
// (DataParallel, DistributedDataParallel, AutocastModel), which are Models that hold another one as
// their submodule `module`. So a training loop stays the same when the way of training changes.
//
//     class MyNet : public ladder::Model {
//      public:
//       explicit MyNet(MyOptions options);  // registers its layers
//       torch::Tensor forward(const ladder::Inputs& inputs) override {
//         return fc_->forward(inputs.only());
//       }
//       std::shared_ptr<Model> new_like() const override {
//         return ladder::new_network_like(*this, options_);
//       }
//       ...
//     };
//
// A network with several outputs returns one tensor of them, or uses GradientReducer directly.
// Python's counterpart: torch.nn.Module with one forward signature.
class Model : public torch::nn::Module {
 public:
  // inputs: one row per sample in each tensor. Returns one row per sample, on the same device.
  // Not thread-safe.
  virtual torch::Tensor forward(const Inputs& inputs) = 0;

  // A second model of the same shape with equal values in tensors of its own, on the same
  // device and in the same mode. Draws nothing from the random generator, which is why it
  // exists: torch::nn::Module::clone initialises again and so moves the generator.
  virtual std::shared_ptr<Model> new_like() const = 0;
};

// `tensor` in float32, or as it is if it is more precise already.
torch::Tensor at_least_float32(const torch::Tensor& tensor);

// Copies every parameter and buffer of `source` into those of `target`, by place. Both
// must come from the same class. Devices may differ; nothing is recorded for autograd.
void copy_values(const torch::nn::Module& source, torch::nn::Module& target);

// The body of new_like for a network that is built from one options struct.
template <typename Network, typename Options>
std::shared_ptr<Model> new_network_like(const Network& source, const Options& options);

// Keeps the CPU random generator as it is: restores its state at the end of the scope.
class RngStateGuard {
 public:
  RngStateGuard();
  ~RngStateGuard();
  RngStateGuard(const RngStateGuard&) = delete;
  RngStateGuard& operator=(const RngStateGuard&) = delete;

 private:
  torch::Tensor state_;
};

template <typename Network, typename Options>
std::shared_ptr<Model> new_network_like(const Network& source, const Options& options) {
  const RngStateGuard keep;
  auto copy = std::make_shared<Network>(options);
  const auto parameters = source.parameters();
  if (!parameters.empty()) copy->to(parameters.front().device());
  copy_values(source, *copy);
  copy->train(source.is_training());
  return copy;
}

}  // namespace ladder
