// SPDX-License-Identifier: Apache-2.0
// Stage 5 (docs/stages/5-accelerator.md): the Accelerator. The loop is the same for any number of
// devices: one object prepares data, model and optimizer for the processes that were started.
//
//   build/bin/stage5_accelerator                    one process
//   build/bin/stage5_accelerator --nprocs 2         two, which it starts itself
//   accelerate launch --no_python --config_file my_config.yaml build/bin/stage5_accelerator
//
// New against stage 4, in three parts. 5a, prepare: Accelerator, backward. 5b, accumulation:
// accumulate, sync_gradients. 5c, checkpoints: save_state, load_state. Also: trackers. Gone: group,
// autocast, scaler, samplers and wrappers, and the device outside of make_data.
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>

#include "ladder/accelerate/accelerator.h"
#include "ladder/accelerate/function_launcher.h"
#include "ladder/checkpoint/safetensors.h"
#include "ladder/data/data_loader.h"
#include "ladder/monitor/evaluation.h"
#include "ladder/monitor/training_monitor.h"
#include "ladder/nn/model.h"
#include "ladder/nn/random_scope.h"
#include "ladder/parallel/replica_check.h"
#include "mnist/accelerated_main.h"
#include "mnist/dataset.h"
#include "mnist/recipe.h"
#include "mnist/record.h"

namespace {

using namespace ladder;
using Options = mnist::AcceleratedOptions;

struct Data {
  DataLoader train;
  DataLoader test;
};

// All images stay in memory as bytes; a loader gathers and normalises one batch at a time.
// Written for one process: prepare divides the batches.
Data make_data(const Options& options, const mnist::Recipe& recipe,
               const Accelerator& accelerator) {
  const auto& device = accelerator.device();
  const auto train =
      accelerator.load_dataset([&] { return mnist::load_train(options.data, recipe, device); });
  const auto test =
      accelerator.load_dataset([&] { return mnist::load_test(options.data, recipe, device); });
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
std::shared_ptr<Model> make_model(const Options& options, const mnist::Recipe& recipe) {
  torch::manual_seed(recipe.seed());
  auto model = recipe.make_model();
  if (!options.load.empty()) load_model(*model, options.load);
  return model;
}

// One pass over the training set. The order of an epoch is a function of its number.
void train_epoch(Accelerator& accelerator, Model& model, const AcceleratedDataLoader& loader,
                 AcceleratedOptimizer& optimizer, const Options& options,
                 const mnist::Recipe& recipe, TrainingMonitor& monitor) {
  model.train();
  for (const Batch& batch : loader) {
    const auto accumulation = accelerator.accumulate(model);
    const RandomScope random({recipe.seed(), batch.epoch, batch.positions});
    const auto loss = recipe.loss(model.forward(batch.inputs), batch);
    accelerator.backward(loss);
    optimizer.step();
    monitor.step(batch, loss, accelerator.sync_gradients());
    optimizer.zero_grad();
    if (monitor.every(options.checkpointing_steps)) accelerator.save_state();
  }
}

// The train_ddp of the tutorials: runs in every process. The accelerator sets up and cleans up.
void run(const Options& options) {
  Accelerator accelerator(options.accelerator);
  const mnist::Recipe recipe(options.recipe, accelerator.num_processes());
  mnist::Record record(options.record, recipe, accelerator.process_group());
  auto data = make_data(options, recipe, accelerator);
  auto network = make_model(options, recipe);
  auto adamw = recipe.make_optimizer(network->parameters());
  auto schedule = recipe.make_scheduler(*adamw);
  auto [train, test, model, optimizer, scheduler] =
      accelerator.prepare(data.train, data.test, network, std::move(adamw), std::move(schedule));
  const RunSetup setup = accelerator.setup();
  TrainingMonitor monitor(options.monitor, setup, *model, train.size());
  accelerator.register_for_checkpointing(monitor);
  if (options.resume) accelerator.load_state(options.resume_from);
  record.begin(setup, train.shard(), test.shard(), *model);
  accelerator.init_trackers(recipe.name(), {{"lr", recipe.lr()}, {"seed", recipe.seed()}});

  for (std::int64_t epoch = train.epoch() + 1; epoch <= recipe.epochs(); ++epoch) {
    train.set_epoch(epoch - 1);
    monitor.begin_epoch(epoch, recipe.epochs(), train.first_batch());
    train_epoch(accelerator, *model, train, *optimizer, options, recipe, monitor);
    scheduler->step();
    record.epoch(monitor.end_epoch());
    accelerator.log({{"train_loss", monitor.train_loss()}}, monitor.steps());
    if (options.checkpoint_epochs) accelerator.save_state();
  }

  monitor.end_training();
  if (!options.save.empty()) accelerator.save_model(*model, options.save);
  const Evaluation result = evaluate(accelerator, *model, test, recipe.criterion());
  require_each_sample_once(result, test.dataset().size());
  require_equal_replicas(*model, accelerator.process_group());
  record.result(result, monitor.totals(), *model, accelerator.scaler().metrics());
  accelerator.log({{"accuracy", result.accuracy()}}, monitor.steps());
  accelerator.end_training();
}

}  // namespace

int main(int argc, char** argv) {
  const auto start = [](const Options& options) {
    if (options.launched) return run(options);
    ladder::function_launcher(run, std::tuple(options), {options.nprocs, options.master_port});
  };
  return mnist::run_main<Options>(argc, argv, start);
}
