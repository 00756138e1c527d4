// SPDX-License-Identifier: Apache-2.0
// Fully sharded (docs/stages/9-fully-sharded.md): stage 2 with parameters, gradients and the
// optimizer's state divided among the ranks. Each rank keeps its shard of every unit of the
// network; a unit is made whole when it computes, and divided again after it.
//
//   build/bin/fully_sharded --recipe stack               two processes
//   build/bin/fully_sharded --recipe stack --nprocs 4    four processes, each with a quarter
//
// New against stage 2: FullyShardedDataParallel in make_model, and unshard() before the network is
// saved. The weights are those of stage 2.
#include <cstdint>
#include <memory>

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
#include "ladder/parallel/fully_sharded_data_parallel.h"
#include "ladder/parallel/replica_check.h"
#include "mnist/dataset.h"
#include "mnist/main.h"
#include "mnist/recipe.h"
#include "mnist/record.h"

namespace {

using namespace ladder;
using Options = mnist::FullyShardedRunOptions;

struct Data {
  DataLoader train;
  DataLoader test;
};

// Every rank has all images in memory and reads its own part: of each training batch, and
// of the test set, where the exact sampler repeats nothing.
Data make_data(const Options& options, const mnist::Recipe& recipe, const torch::Device& device,
               const ProcessGroup& group) {
  const auto train = mnist::load_train(options.data, recipe, device);
  const auto test = mnist::load_test(options.data, recipe, device);
  const auto batches = divide_batches(train->size(), {.mode = options.batch_mode,
                                                      .batch_size = recipe.batch_size(),
                                                      .seed = recipe.seed(),
                                                      .rank = group.rank(),
                                                      .world_size = group.world_size(),
                                                      .micro_batch = options.micro_batch()});
  const auto test_part = std::make_shared<ExactEvalSampler>(
      test->size(),
      ExactEvalSamplerOptions{.world_size = group.world_size(), .rank = group.rank()});
  return {.train = DataLoader(train, {.batch_sampler = batches,
                                      .num_workers = options.data.num_workers,
                                      .pin_memory = options.data.pin_memory && device.is_cuda(),
                                      .transform = recipe.make_transform(options.data.augment)}),
          .test = DataLoader(test, {.batch_size = recipe.eval_batch_size(),
                                    .sampler = test_part,
                                    .num_workers = options.data.num_workers,
                                    .pin_memory = options.data.pin_memory && device.is_cuda()})};
}

// Seeded just before the weights are drawn: the same seed gives the same network everywhere.
// FullyShardedDataParallel leaves each rank its shard of it.
std::shared_ptr<FullyShardedDataParallel> make_model(const Options& options,
                                                     const mnist::Recipe& recipe,
                                                     const torch::Device& device,
                                                     const ProcessGroup& group) {
  torch::manual_seed(recipe.seed());
  auto model = recipe.make_model();
  if (!options.load.empty()) load_model(*model, options.load);
  model->to(device);
  return std::make_shared<FullyShardedDataParallel>(model, group, options.fully_sharded);
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

// The train_ddp of the tutorials: runs in every process. `group` connects the ranks at
// MASTER_ADDR:MASTER_PORT (setup) and disconnects them when run ends (cleanup).
void run(const Options& options) {
  const ProcessGroup group = init_process_group(options.process_group);
  const mnist::Recipe recipe(options.recipe, group.world_size());
  mnist::Record record(options.record, recipe, group);
  const auto threads =
      prepare_process({.requested = options.threads, .local_world_size = group.local_world_size()});
  const auto device = choose_device(options.device, record.log(), group.local_rank());
  auto data = make_data(options, recipe, device, group);
  auto model = make_model(options, recipe, device, group);
  auto optimizer = recipe.make_optimizer(model->parameters());
  auto scheduler = recipe.make_scheduler(*optimizer);
  const RunSetup setup{.group = group, .device = device, .threads = threads};
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
  model->unshard();  // the whole network on every rank, for the file and the record
  if (!options.save.empty() && group.rank() == 0) save_model(*model, options.save);
  const Evaluation result =
      sum_over_ranks(evaluate(*model, data.test, recipe.criterion(), device), group);
  require_each_sample_once(result, data.test.dataset().size());
  require_equal_replicas(*model, group);
  record.result(result, monitor.totals(), *model,
                {{"most_whole_bytes", static_cast<double>(model->most_whole_bytes())}});
}

}  // namespace

int main(int argc, char** argv) {
  const auto spawn_ranks = [](const Options& options) {
    ladder::spawn([&](int /*rank*/) { run(options); },
                  {.nprocs = options.nprocs, .master_port = options.master_port});
  };
  return mnist::run_main<Options>(argc, argv, spawn_ranks);
}
