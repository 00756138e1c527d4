// SPDX-License-Identifier: Apache-2.0
// Stage 1 (docs/stages/1-data-parallel.md): DataParallel. One process divides batches over devices.
//
//   build/bin/stage1_data_parallel                         all GPUs, or two replicas on the CPU
//   build/bin/stage1_data_parallel --device-ids 0,1        these two GPUs
//   build/bin/stage1_data_parallel --device-ids cpu        one device: the weights of stage 0
//
// New against stage 0: the model is wrapped, and devices are chosen instead of a device.
#include <cstdint>
#include <memory>
#include <vector>

#include "ladder/checkpoint/safetensors.h"
#include "ladder/core/device.h"
#include "ladder/data/data_loader.h"
#include "ladder/monitor/evaluation.h"
#include "ladder/monitor/training_monitor.h"
#include "ladder/nn/model.h"
#include "ladder/nn/random_scope.h"
#include "ladder/parallel/data_parallel.h"
#include "mnist/dataset.h"
#include "mnist/main.h"
#include "mnist/recipe.h"
#include "mnist/record.h"

namespace {

using namespace ladder;
using Options = mnist::ReplicaOptions;

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
// The network is on the first device; DataParallel keeps a replica of it on each of them.
std::shared_ptr<Model> make_model(const Options& options, const mnist::Recipe& recipe,
                                  const std::vector<torch::Device>& devices,
                                  const torch::Device& output_device) {
  torch::manual_seed(recipe.seed());
  auto model = recipe.make_model();
  if (!options.load.empty()) load_model(*model, options.load);
  model->to(devices.front());
  return std::make_shared<DataParallel>(
      model, DataParallelOptions{.device_ids = devices, .output_device = output_device});
}

// One pass over the training set. The order of an epoch is a function of its number.
void train_epoch(Model& model, DataLoader& loader, torch::optim::Optimizer& optimizer,
                 const mnist::Recipe& recipe, const torch::Device& device,
                 TrainingMonitor& monitor) {
  model.train();
  for (const Batch& cpu_batch : loader) {
    const Batch batch = cpu_batch.to(device);
    const RandomScope random({recipe.seed(), batch.epoch, batch.positions});
    const auto loss = recipe.loss(model.forward(batch.inputs), batch);
    loss.backward();
    optimizer.step();
    monitor.step(batch, loss);
    optimizer.zero_grad();
  }
}

void run(const Options& options) {
  const mnist::Recipe recipe(options.recipe);
  mnist::Record record(options.record, recipe);
  const auto threads = prepare_process({.requested = options.threads});
  const auto devices = choose_devices(options.device_ids, options.device, record.log());
  const auto device = choose_output_device(options.output_device, devices);
  auto data = make_data(options, recipe, device);
  auto model = make_model(options, recipe, devices, device);
  auto optimizer = recipe.make_optimizer(model->parameters());
  auto scheduler = recipe.make_scheduler(*optimizer);
  const RunSetup setup{.device = device, .threads = threads};
  TrainingMonitor monitor(options.monitor, setup, *model, data.train.size());
  record.begin(setup, data.train, data.test, *model);

  for (std::int64_t epoch = 1; epoch <= recipe.epochs(); ++epoch) {
    data.train.set_epoch(epoch - 1);
    monitor.begin_epoch(epoch, recipe.epochs());
    train_epoch(*model, data.train, *optimizer, recipe, device, monitor);
    scheduler->step();
    record.epoch(monitor.end_epoch());
  }

  monitor.end_training();
  if (!options.save.empty()) save_model(*model, options.save);
  const Evaluation result = evaluate(*model, data.test, recipe.criterion(), device);
  require_each_sample_once(result, data.test.dataset().size());
  record.result(result, monitor.totals(), *model);
}

}  // namespace

int main(int argc, char** argv) { return mnist::run_main<Options>(argc, argv, run); }
