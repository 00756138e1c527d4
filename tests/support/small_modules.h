// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "ladder/data/batch.h"

namespace ladder {

// A module with one parameter "weight" of three ones.
struct OneWeight : torch::nn::Module {
  OneWeight() : weight(register_parameter("weight", torch::ones({3}))) {}
  torch::Tensor weight;
};

// Puts "module." before all names, as DistributedDataParallel does.
struct Wrapper : torch::nn::Module {
  explicit Wrapper(std::shared_ptr<torch::nn::Module> inner) {
    register_module("module", std::move(inner));
  }
};

// A batch of samples 100, 101, …, as far as a loop without a network needs one.
inline Batch batch_of(std::int64_t size) {
  return {.targets = torch::zeros({size}, torch::kInt64),
          .positions = torch::arange(size),
          .indices = 100 + torch::arange(size),
          .global_size = size};
}

}  // namespace ladder
