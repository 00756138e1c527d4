// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>

#include "ladder/data/batch.h"
#include "ladder/nn/model.h"

namespace ladder {

// A model whose forward is not called.
struct IdleModel : Model {
  torch::Tensor forward(const Inputs& /*inputs*/) override { return {}; }
  std::shared_ptr<Model> new_like() const override { return nullptr; }
};

// The body of new_like for a network without options.
template <typename Network>
std::shared_ptr<Model> new_like_of(const Network& source) {
  const RngStateGuard keep;
  auto copy = std::make_shared<Network>();
  copy_values(source, *copy);
  copy->train(source.is_training());
  return copy;
}

// A model with one parameter "weight" of three ones.
struct OneWeight : IdleModel {
  OneWeight() : weight(register_parameter("weight", torch::ones({3}))) {}
  torch::Tensor weight;
};

// A model of which a part lies on the device without memory.
struct OnTwoDevices : IdleModel {
  OnTwoDevices() {
    register_parameter("here", torch::ones({2}));
    register_parameter("there", torch::empty({2}, torch::kMeta));
  }
};

// Puts "module." before all names, as DistributedDataParallel does.
struct Wrapper : ModelWrapper {
  using ModelWrapper::ModelWrapper;
  torch::Tensor forward(const Inputs& /*inputs*/) override { return {}; }
};

// A batch of samples 100, 101, …, as far as a loop without a network needs one.
inline Batch batch_of(std::int64_t size) {
  return {.targets = torch::zeros({size}, torch::kInt64),
          .positions = torch::arange(size),
          .indices = 100 + torch::arange(size),
          .global_size = size};
}

}  // namespace ladder
