// SPDX-License-Identifier: Apache-2.0
// CUDA graph (docs/stages/0b-cuda-graph.md): stage 0 with its whole step in one CUDA graph, so that
// a small network does not wait for its host.
//
//   build/bin/cuda_graph                     train BasicNet on MNIST for one epoch
//   build/bin/cuda_graph --recipe convnet    the BatchNorm network, three epochs
//
// New against stage 0: StepGraph in train_epoch. On the CPU it calls the step: the weights are
// those of stage 0.
#include <cstdint>
#include <memory>

#include "ladder/checkpoint/safetensors.h"
#include "ladder/core/device.h"
#include "ladder/data/data_loader.h"
#include "ladder/graph/step_graph.h"
#include "ladder/monitor/evaluation.h"
#include "ladder/monitor/training_monitor.h"
#include "ladder/nn/model.h"
#include "ladder/nn/random_scope.h"
#include "mnist/dataset.h"
#include "mnist/main.h"
#include "mnist/recipe.h"
#include "mnist/record.h"

namespace {

using namespace ladder;
using Options = mnist::SingleOptions;

struct Data {
  DataLoader train;
  DataLoader test;
};

// All images stay in memory as bytes; a loader gathers and normalises one batch at a time.
Data make_data(const Options& options, const mnist::Recipe& recipe, const torch::Device& device) {
  const auto train = mnist::load_train(options.data, recipe, device);
  const auto test = mnist::load_test(options.data, recipe, device);
  return {.train = DataLoader(train, {.batch_size = recipe.batch_size(),
                                      .shuffle = true,
                                      .seed = recipe.seed(),
                                      .num_workers = options.data.num_workers,
                                      .pin_memory = options.data.pin_memory && device.is_cuda(),
                                      .transform = recipe.make_transform(options.data.augment)}),
          .test = DataLoader(test, {.batch_size = recipe.eval_batch_size(),
                                    .num_workers = options.data.num_workers,
                                    .pin_memory = options.data.pin_memory && device.is_cuda()})};
}

// Seeded just before the weights are drawn: the same seed gives the same network everywhere.
std::shared_ptr<Model> make_model(const Options& options, const mnist::Recipe& recipe,
                                  const torch::Device& device) {
  torch::manual_seed(recipe.seed());
  auto model = recipe.make_model();
  if (!options.load.empty()) load_model(*model, options.load);
  model->to(device);
  return model;
}

// One pass over the training set. The order of an epoch is a function of its number. After a few
// steps, the graph replays the kernels of the step, and its host code runs no more.
void train_epoch(Model& model, DataLoader& loader, torch::optim::Optimizer& optimizer,
                 const mnist::Recipe& recipe, StepGraph& graph, TrainingMonitor& monitor) {
  model.train();
  const auto step = [&](const Batch& batch) {
    optimizer.zero_grad();
    const RandomScope random({recipe.seed(), batch.epoch, batch.positions});
    auto loss = recipe.loss(model.forward(batch.inputs), batch);
    loss.backward();
    optimizer.step();
    return loss;
  };
  for (const Batch& batch : loader) monitor.step(batch, graph.run(batch, step));
}

void run(const Options& options) {
  const mnist::Recipe recipe(options.recipe);
  mnist::Record record(options.record, recipe);
  const auto threads = prepare_process({.requested = options.threads});
  const auto device = choose_device(options.device, record.log());
  auto data = make_data(options, recipe, device);
  auto model = make_model(options, recipe, device);
  auto optimizer = recipe.make_optimizer(model->parameters());
  auto scheduler = recipe.make_scheduler(*optimizer);
  StepGraph graph(device, *optimizer);
  const RunSetup setup{.device = device, .threads = threads};
  TrainingMonitor monitor(options.monitor, setup, *model, data.train.size());
  record.begin(setup, data.train, data.test, *model);

  for (std::int64_t epoch = 1; epoch <= recipe.epochs(); ++epoch) {
    data.train.set_epoch(epoch - 1);
    monitor.begin_epoch(epoch, recipe.epochs());
    train_epoch(*model, data.train, *optimizer, recipe, graph, monitor);
    scheduler->step();
    record.epoch(monitor.end_epoch());
  }

  monitor.end_training();
  if (!options.save.empty()) save_model(*model, options.save);
  const Evaluation result = evaluate(*model, data.test, recipe.criterion(), device);
  require_each_sample_once(result, data.test.dataset().size());
  record.result(result, monitor.totals(), *model,
                {{"replayed_steps", static_cast<double>(graph.replays())}});
}

}  // namespace

int main(int argc, char** argv) { return mnist::run_main<Options>(argc, argv, run); }
