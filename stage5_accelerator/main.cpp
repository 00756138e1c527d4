// SPDX-License-Identifier: Apache-2.0
// Stage 5: the Accelerator. The loop no longer knows how many devices there are: one object
// prepares data, model and optimizer for as many processes as somebody has started.
//
//   build/bin/stage5_accelerator                    one process
//   build/bin/stage5_accelerator --nprocs 2         two, which it starts itself
//   accelerate launch --no_python --config_file my_config.yaml build/bin/stage5_accelerator
//
// New against stage 4: Accelerator and prepare; checkpoints and resume; trackers. Gone: group,
// device, autocast, scaler, samplers and wrappers.
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>

#include "ladder/accelerate/accelerator.h"
#include "ladder/accelerate/evaluate.h"
#include "ladder/accelerate/function_launcher.h"
#include "ladder/checkpoint/safetensors.h"
#include "ladder/data/data_loader.h"
#include "ladder/data/mnist_dataset.h"
#include "ladder/nn/model.h"
#include "ladder/nn/random_scope.h"
#include "ladder/parallel/replica_check.h"
#include "ladder/stage/run_main.h"
#include "ladder/train/recipe.h"
#include "ladder/train/run_record.h"

namespace {

using namespace ladder;

struct Data {
  DataLoader train;
  DataLoader test;
};

// The whole set lies in memory as bytes; a loader gathers and normalises one batch at a time.
// Written for one process: prepare divides the batches.
Data make_data(const RunOptions& options, const Recipe& recipe, const Accelerator& accelerator) {
  const auto read = [&](Split split, std::int64_t limit) {
    return accelerator.load_dataset([&] {
      return std::make_shared<MnistDataset>(options.data_root, split,
                                            MnistOptions{recipe.normalization(), limit});
    });
  };
  const auto train = read(Split::kTrain, options.limit_train);
  const auto test = read(Split::kTest, options.limit_test);
  const auto shift = options.augment_shift ? recipe.make_shift() : nullptr;
  return {.train = DataLoader(train, {.batch_size = recipe.batch_size(),
                                      .shuffle = true,
                                      .seed = recipe.seed(),
                                      .num_workers = options.num_workers,
                                      .pin_memory = options.pin_memory,
                                      .transform = shift}),
          .test = DataLoader(test, {.batch_size = recipe.eval_batch_size(),
                                    .num_workers = options.num_workers,
                                    .pin_memory = options.pin_memory})};
}

// Seeded just before the weights are drawn: the same seed gives the same network everywhere.
std::shared_ptr<Model> make_model(const RunOptions& options, const Recipe& recipe) {
  torch::manual_seed(recipe.seed());
  auto model = recipe.make_model();
  if (!options.load.empty()) load_model(*model, options.load);
  return model;
}

// One pass over the training set. The order of an epoch is a function of its number.
void train_epoch(Accelerator& accelerator, Model& model, const AcceleratedDataLoader& loader,
                 AcceleratedOptimizer& optimizer, const RunOptions& options, const Recipe& recipe,
                 RunRecord& record) {
  model.train();
  for (const Batch& batch : loader) {
    const auto accumulation = accelerator.accumulate(model);
    const RandomScope random({recipe.seed(), batch.epoch, batch.positions});
    const auto loss = recipe.loss(model.forward(batch.images), batch);
    accelerator.backward(loss);
    optimizer.step();
    record.step(batch, loss, model, accelerator.sync_gradients());
    optimizer.zero_grad();
    if (record.every(options.checkpointing_steps)) accelerator.save_state();
  }
}

// What the tutorials call train_ddp: runs in every process. The accelerator sets up and cleans up.
void run(const RunOptions& options) {
  Accelerator accelerator(options.accelerator, {.ddp = {.check_replicas = options.check_replicas}});
  const Recipe recipe(options.recipe, accelerator.num_processes());
  RunRecord record(options.record, recipe, accelerator.process_group());
  auto data = make_data(options, recipe, accelerator);
  auto network = make_model(options, recipe);
  auto descent = recipe.make_optimizer(network->parameters());
  auto schedule = recipe.make_scheduler(*descent);
  auto [train, test, model, optimizer, scheduler] =
      accelerator.prepare(data.train, data.test, network, std::move(descent), std::move(schedule));
  accelerator.register_for_checkpointing(record);
  if (options.resume) accelerator.load_state(options.resume_from);
  record.begin(accelerator.setup(), train.shard(), test.shard(), *model);
  accelerator.init_trackers(recipe.name(), {{"lr", recipe.lr()}, {"seed", recipe.seed()}});

  for (std::int64_t epoch = train.epoch() + 1; epoch <= recipe.epochs(); ++epoch) {
    train.set_epoch(epoch - 1);
    record.begin_epoch(epoch, train.first_batch());
    train_epoch(accelerator, *model, train, *optimizer, options, recipe, record);
    scheduler->step();
    record.end_epoch();
    accelerator.log({{"train_loss", record.train_loss()}}, record.steps());
    if (options.checkpoint_epochs) accelerator.save_state();
  }

  record.begin_testing();
  const Evaluation result = evaluate(accelerator, *model, test, recipe);
  require_all_seen(result, test.dataset().size());
  require_equal_replicas(*model, accelerator.process_group());
  record.finish(result, *model, accelerator.scaler().numbers());
  if (!options.save.empty()) accelerator.save_model(*model, options.save);
  accelerator.log({{"accuracy", result.accuracy()}}, record.steps());
  accelerator.end_training();
}

}  // namespace

int main(int argc, char** argv) {
  const auto start = [](const ladder::RunOptions& options) {
    if (options.launched) return run(options);
    ladder::function_launcher(run, std::tuple(options), {options.nprocs, options.master_port});
  };
  return ladder::run_main(
      argc, argv, start,
      {.distributed = true, .spawn = true, .launcher = true, .accelerator = true});
}
