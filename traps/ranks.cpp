// SPDX-License-Identifier: Apache-2.0
#include "traps/ranks.h"

#include <vector>

#include "ladder/comm/init_process_group.h"
#include "ladder/core/device.h"
#include "ladder/data/distributed_sampler.h"
#include "ladder/launch/spawn.h"
#include "ladder/nn/random_scope.h"

namespace ladder::traps {

void on_processes(int count, const std::function<void()>& fn, int threads) {
  const auto prepared = [&](int /*rank*/) {
    prepare_process({.requested = threads});
    fn();
  };
  spawn(prepared, {.nprocs = count});
}

void on_ranks(int count, const std::function<void(const ProcessGroup&)>& fn,
              std::chrono::milliseconds timeout) {
  on_processes(count, [&] { fn(init_process_group({.timeout = timeout, .device = "cpu"})); });
}

Recipe quick_recipe(double lr) { return Recipe({.name = "convnet", .lr = lr}); }

std::shared_ptr<const mnist::Dataset> images_of(Split split, const Recipe& recipe,
                                                std::int64_t limit) {
  return std::make_shared<mnist::Dataset>(LADDER_SOURCE_DIR "/data/mnist", split,
                                          mnist::DatasetOptions{recipe.normalization(), limit});
}

std::shared_ptr<Model> seeded_model(const Recipe& recipe) {
  torch::manual_seed(recipe.seed());
  return recipe.make_model();
}

DataLoader divided_loader(const std::shared_ptr<const mnist::Dataset>& images,
                          const ProcessGroup& group, std::int64_t batch_size,
                          std::int64_t micro_batch) {
  return DataLoader(
      images, {.batch_sampler = divide_batches(images->size(), {.batch_size = batch_size,
                                                                .rank = group.rank(),
                                                                .world_size = group.world_size(),
                                                                .micro_batch = micro_batch})});
}

void train_epoch(Model& model, const DataLoader& loader, torch::optim::Optimizer& optimizer,
                 const Recipe& recipe) {
  model.train();
  for (const Batch& batch : loader) {
    const RandomScope random({recipe.seed(), batch.epoch, batch.positions});
    recipe.loss(model.forward(batch.inputs), batch).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
}

namespace {

template <typename Part>
torch::Tensor flat(const torch::nn::Module& module, const Part& part) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> parts;
  for (const auto& parameter : module.parameters()) {
    parts.push_back(part(parameter).reshape(-1).to(torch::kFloat64));
  }
  return torch::cat(parts);
}

}  // namespace

double distance(const torch::Tensor& a, const torch::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

torch::Tensor flat_parameters(const torch::nn::Module& module) {
  return flat(module, [](const torch::Tensor& parameter) { return parameter; });
}

torch::Tensor flat_gradients(const torch::nn::Module& module) {
  return flat(module, [](const torch::Tensor& parameter) { return parameter.grad(); });
}

double distance_between_ranks(const torch::nn::Module& module, const ProcessGroup& group) {
  const auto all = group.all_gather_into_tensor(flat_parameters(module));
  return distance(all[1], all[0]);
}

}  // namespace ladder::traps
