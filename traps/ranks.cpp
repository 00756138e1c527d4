// SPDX-License-Identifier: Apache-2.0
#include "traps/ranks.h"

#include <fmt/core.h>

#include <cstdlib>
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

namespace {

int number_of(const char* variable, int otherwise) {
  const char* value = std::getenv(variable);
  return value == nullptr ? otherwise : std::atoi(value);
}

}  // namespace

Recorder::Recorder(const std::string& side, const torch::nn::Module& model)
    : Recorder(side, model, number_of("RANK", 0), number_of("WORLD_SIZE", 1)) {}

Recorder::Recorder(const std::string& side, const torch::nn::Module& model, int rank,
                   int world_size) {
  const char* folder = std::getenv("LADDER_TRAP_RECORDS");
  if (folder == nullptr || (side != "mistake" && side != "guard")) return;
  const auto path = Fingerprint::path_beside(fmt::format("{}/{}", folder, side), rank);
  fingerprint_ = std::make_unique<Fingerprint>(path, 1, rank, world_size);
  fingerprint_->watch(model);
}

void Recorder::add(const Batch& batch, const torch::Tensor& loss) {
  if (records()) fingerprint_->add(batch, loss);
}

void Recorder::step(const Batch& batch, const torch::Tensor& loss, const torch::nn::Module& model,
                    const torch::optim::Optimizer* optimizer) {
  if (!records()) return;
  Fingerprint::Extras extras;
  if (optimizer != nullptr) {
    for (const auto& group : optimizer->param_groups()) {
      extras.rates.push_back(group.options().get_lr());
    }
  }
  fingerprint_->record(++steps_, batch, loss, model, extras);
}

void train_epoch(Model& model, const DataLoader& loader, torch::optim::Optimizer& optimizer,
                 const Recipe& recipe, Recorder* recorder) {
  model.train();
  for (const Batch& batch : loader) {
    const RandomScope random({recipe.seed(), batch.epoch, batch.positions});
    const auto loss = recipe.loss(model.forward(batch.inputs), batch);
    loss.backward();
    optimizer.step();
    if (recorder != nullptr) recorder->step(batch, loss, model, &optimizer);
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
