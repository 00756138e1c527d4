// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ladder/data/batch.h"
#include "ladder/nn/model.h"
#include "ladder/nn/random_scope.h"
#include "mnist/recipe.h"
#include "tests/support/relative_difference.h"

namespace ladder {

using mnist::Math;
using mnist::Recipe;

// Small training runs, the same in every process that does them.

inline const Recipe& basicnet() {
  static const Recipe recipe({.name = "basicnet"});
  return recipe;
}
inline const Recipe& convnet() {
  static const Recipe recipe({.name = "convnet"});
  return recipe;
}

// The first weights of a recipe's network: equal wherever it is called.
inline std::shared_ptr<Model> first_model(const Recipe& recipe) {
  torch::manual_seed(recipe.seed());
  return recipe.make_model();
}

// A batch of random images, a function of its arguments.
inline Batch random_batch(std::int64_t size, std::uint64_t seed = 1) {
  auto generator = at::detail::createCPUGenerator(seed);
  Batch batch;
  batch.inputs = torch::randn({size, 1, 28, 28}, generator);
  batch.targets = torch::randint(10, {size}, generator, torch::kInt64);
  batch.positions = torch::arange(size, torch::kInt64) + 1'000 * static_cast<std::int64_t>(seed);
  batch.global_size = size;
  return batch;
}

// Samples `begin` to `begin + count` of a batch that `world_size` ranks share.
inline Batch part_of(const Batch& whole, std::int64_t begin, std::int64_t count, int world_size) {
  return {.inputs = whole.inputs.map(
              [&](const torch::Tensor& tensor) { return tensor.narrow(0, begin, count); }),
          .targets = whole.targets.narrow(0, begin, count),
          .positions = whole.positions.narrow(0, begin, count),
          .epoch = whole.epoch,
          .global_size = whole.size(),
          .world_size = world_size};
}

// One rank's slice. The first ranks take one sample more where it does not divide.
inline Batch slice_of(const Batch& whole, int rank, int world_size) {
  const std::int64_t least = whole.size() / world_size;
  const std::int64_t more = whole.size() % world_size;
  const std::int64_t begin = rank * least + std::min<std::int64_t>(rank, more);
  return part_of(whole, begin, least + (rank < more ? 1 : 0), world_size);
}

inline torch::Tensor loss_of(Model& model, const Recipe& recipe, const Batch& batch) {
  const RandomScope random({recipe.seed(), batch.epoch, batch.positions});
  return recipe.loss(model.forward(batch.inputs), batch);
}

// Leaves the gradients of one batch in the model.
inline void run_backward(Model& model, const Recipe& recipe, const Batch& batch) {
  model.zero_grad();
  loss_of(model, recipe, batch).backward();
}

// A training run: `batch_of(step)` gives the batches.
inline void train(Model& model, torch::optim::Optimizer& optimizer, const Recipe& recipe, int steps,
                  const std::function<Batch(int step)>& batch_of) {
  for (int step = 0; step < steps; ++step) {
    run_backward(model, recipe, batch_of(step));
    optimizer.step();
  }
}

// All tensors in one row, for comparisons.
inline torch::Tensor flat(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> rows;
  for (const auto& tensor : tensors) rows.push_back(tensor.detach().flatten().to(torch::kFloat32));
  return torch::cat(rows);
}

inline torch::Tensor flat_weights(const torch::nn::Module& model) {
  return flat(model.parameters());
}

inline torch::Tensor flat_gradients(const torch::nn::Module& model) {
  std::vector<torch::Tensor> gradients;
  for (const auto& parameter : model.parameters()) gradients.push_back(parameter.grad());
  return flat(gradients);
}

// The gradients that one batch gives a model that has not been wrapped.
inline torch::Tensor gradient_of_one_process(const std::shared_ptr<Model>& model,
                                             const Recipe& recipe, const Batch& batch) {
  run_backward(*model, recipe, batch);
  return flat_gradients(*model);
}

}  // namespace ladder
