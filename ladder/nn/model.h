// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <memory>

#include "ladder/core/math.h"

namespace ladder {

// What a network ends in, which decides the loss that fits (see Recipe::loss).
enum class Head {
  kLogSoftmax,  // log-probabilities, for nll_loss
  kLogits,      // raw scores, for cross-entropy, which takes the log-softmax itself
};

// A network that turns images into one row of class scores each.
//
// Everything that trains or evaluates takes a `Model&`: the plain networks, and the
// wrappers around them (DataParallel, DistributedDataParallel), which are `Model`s
// that hold another one as their submodule `module`. So a training loop does not
// change when the way of training does.
//
// Python's counterpart: torch.nn.Module with one forward signature.
class Model : public torch::nn::Module {
 public:
  // images: float [N, 1, 28, 28]. Returns [N, 10] on the same device. Not thread-safe.
  virtual torch::Tensor forward(const torch::Tensor& images) = 0;

  // A second model of the same shape with equal values in tensors of its own, on the same
  // device and in the same mode. Draws nothing from the random generator, which is why it
  // exists: torch::nn::Module::clone initialises again and so moves the generator.
  virtual std::shared_ptr<Model> new_like() const = 0;
};

// `tensor` in float32, or as it is if it is more precise already.
torch::Tensor at_least_float32(const torch::Tensor& tensor);

// What a network returns for its last layer's scores, [N, 10]: log-probabilities, or the scores.
// In float32 also under autocast, where the last layer computes in 16 bits.
torch::Tensor apply_head(const torch::Tensor& scores, Head head);

// Copies every parameter and buffer of `source` into those of `target`, by place. Both
// must come from the same class. Devices may differ; nothing is recorded for autograd.
void copy_values(const torch::nn::Module& source, torch::nn::Module& target);

// The body of new_like for a network that is built from one options struct.
template <typename Network, typename Options>
std::shared_ptr<Model> new_network_like(const Network& source, const Options& options);

// Keeps the CPU random generator as it is: restores its state at the end of the scope.
class KeepRandomState {
 public:
  KeepRandomState();
  ~KeepRandomState();
  KeepRandomState(const KeepRandomState&) = delete;
  KeepRandomState& operator=(const KeepRandomState&) = delete;

 private:
  torch::Tensor state_;
};

template <typename Network, typename Options>
std::shared_ptr<Model> new_network_like(const Network& source, const Options& options) {
  const KeepRandomState keep;
  auto copy = std::make_shared<Network>(options);
  const auto parameters = source.parameters();
  if (!parameters.empty()) copy->to(parameters.front().device());
  copy_values(source, *copy);
  copy->train(source.is_training());
  return copy;
}

}  // namespace ladder
