// SPDX-License-Identifier: Apache-2.0
// Pipeline (docs/stages/8-pipeline.md): stage 0 with the network cut over processes. Each has some
// layers; a batch passes them in micro-batches, so that the ranks work at the same time.
//
//   build/bin/pipeline                             two processes, two stages
//   build/bin/pipeline --nprocs 4                  four stages: conv1, conv2, fc1, fc2
//   build/bin/pipeline --nprocs 1                  one process, which accumulates micro-batches
//   build/bin/pipeline --schedule gpipe            all forwards of a batch, then all backwards
//
// New against stage 0: main starts processes, each keeps its layers, and PipelineStage::step is
// forward and backward. The weights are those of one process with the same micro-batches.
#include <cstdint>
#include <memory>
#include <utility>

#include "ladder/checkpoint/safetensors.h"
#include "ladder/comm/init_process_group.h"
#include "ladder/core/device.h"
#include "ladder/data/data_loader.h"
#include "ladder/data/distributed_sampler.h"
#include "ladder/launch/spawn.h"
#include "ladder/monitor/evaluation.h"
#include "ladder/monitor/training_monitor.h"
#include "ladder/nn/model.h"
#include "ladder/nn/random_scope.h"
#include "ladder/parallel/pipeline_stage.h"
#include "ladder/parallel/replicate.h"
#include "mnist/dataset.h"
#include "mnist/main.h"
#include "mnist/networks.h"
#include "mnist/recipe.h"
#include "mnist/record.h"

namespace {

using namespace ladder;
using Options = mnist::PipelineRunOptions;

struct Data {
  DataLoader train;
  DataLoader test;
};

// Every rank reads the same batches: the first one uses their images, the last one their labels.
Data make_data(const Options& options, const mnist::Recipe& recipe, const torch::Device& device) {
  const auto train = mnist::load_train(options.data, recipe, device);
  const auto test = mnist::load_test(options.data, recipe, device);
  const auto batches = divide_batches(train->size(), {.batch_size = recipe.batch_size(),
                                                      .seed = recipe.seed(),
                                                      .micro_batch = options.micro_batch()});
  return {.train = DataLoader(train, {.batch_sampler = batches,
                                      .num_workers = options.data.num_workers,
                                      .pin_memory = options.data.pin_memory && device.is_cuda(),
                                      .transform = recipe.make_transform(options.data.augment)}),
          .test = DataLoader(test, {.batch_size = recipe.eval_batch_size(),
                                    .num_workers = options.data.num_workers,
                                    .pin_memory = options.data.pin_memory && device.is_cuda()})};
}

// The whole network is drawn on every rank, because the same seed gives the same weights
// everywhere; each rank keeps its layers.
PipelineStage make_model(const Options& options, const mnist::Recipe& recipe,
                         const torch::Device& device, const ProcessGroup& group) {
  torch::manual_seed(recipe.seed());
  auto model = recipe.make_model();
  if (!options.load.empty()) load_model(*model, options.load);
  mnist::keep_layers(*model, group.rank(), group.world_size());
  model->to(device);
  if (options.replicate.in_micro_batches()) {
    model = replicate(model, ProcessGroup::single(), options.replicate);
  }
  return {std::move(model), group, options.pipeline};
}

// One pass over the training set. The order of an epoch is a function of its number.
void train_epoch(PipelineStage& model, DataLoader& loader, torch::optim::Optimizer& optimizer,
                 const mnist::Recipe& recipe, const torch::Device& device,
                 TrainingMonitor& monitor) {
  model.train();
  for (const Batch& cpu_batch : loader) {
    const Batch batch = cpu_batch.to(device);
    const RandomScope random({recipe.seed(), batch.epoch, batch.positions});
    const auto loss = model.step(batch, [&](const torch::Tensor& output, const Batch& part) {
      return recipe.loss(output, part);
    });
    optimizer.step();
    monitor.step(batch, loss);
    optimizer.zero_grad();
  }
}

void run(const Options& options) {
  const ProcessGroup group = init_process_group(options.process_group);
  const mnist::Recipe recipe(options.recipe);
  mnist::Record record(options.record, recipe, group);
  const auto threads =
      prepare_process({.requested = options.threads, .local_world_size = group.local_world_size()});
  const auto device = choose_device(options.device, record.log(), group.local_rank());
  auto data = make_data(options, recipe, device);
  auto model = make_model(options, recipe, device, group);
  auto optimizer = recipe.make_optimizer(model.parameters());
  auto scheduler = recipe.make_scheduler(*optimizer);
  const RunSetup setup{.group = group, .device = device, .threads = threads};
  TrainingMonitor monitor(options.monitor, setup, model, data.train.size());
  record.begin(setup, data.train, data.test, model);

  for (std::int64_t epoch = 1; epoch <= recipe.epochs(); ++epoch) {
    data.train.set_epoch(epoch - 1);
    monitor.begin_epoch(epoch, recipe.epochs());
    train_epoch(model, data.train, *optimizer, recipe, device, monitor);
    scheduler->step();
    record.epoch(monitor.end_epoch());
  }

  monitor.end_training();
  const auto network = recipe.make_model();
  model.copy_weights_to(*network);
  if (!options.save.empty() && group.rank() == 0) save_model(*network, options.save);
  const Evaluation result = evaluate(model, data.test, recipe.criterion(), device);
  require_each_sample_once(result, data.test.dataset().size());
  record.result(result, monitor.totals(), *network);
}

}  // namespace

int main(int argc, char** argv) {
  const auto spawn_ranks = [](const Options& options) {
    if (options.launched) return run(options);
    ladder::spawn([&](int /*rank*/) { run(options); },
                  {.nprocs = options.nprocs, .master_port = options.master_port});
  };
  return mnist::run_main<Options>(argc, argv, spawn_ranks);
}
