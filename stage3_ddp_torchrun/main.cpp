// SPDX-License-Identifier: Apache-2.0
// Stage 3: DistributedDataParallel, started by the environment. The program starts nobody; a
// launcher starts it as often as there are devices, on one machine or on many.
//
//   .venv/bin/torchrun --standalone --nproc-per-node 2 --no-python build/bin/stage3_ddp_torchrun
//   mpirun -n 2 build/bin/stage3_ddp_torchrun
//   RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 build/bin/stage3_ddp_torchrun
//
// srun and accelerate launch work too; scripts/ has the files for clusters. New against stage 2:
// main. Who this process is comes from the launcher's variables, for which run looked already.
#include <cstdint>
#include <memory>

#include "ladder/checkpoint/safetensors.h"
#include "ladder/comm/init_process_group.h"
#include "ladder/core/device.h"
#include "ladder/data/data_loader.h"
#include "ladder/data/distributed_sampler.h"
#include "ladder/data/mnist_dataset.h"
#include "ladder/nn/model.h"
#include "ladder/nn/random_scope.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "ladder/parallel/replica_check.h"
#include "ladder/stage/run_main.h"
#include "ladder/train/evaluate.h"
#include "ladder/train/recipe.h"
#include "ladder/train/run_record.h"

namespace {

using namespace ladder;

struct Data {
  DataLoader train;
  DataLoader test;
};

// Every rank holds the whole set on its device and reads its own part: of each training batch, and
// of the test set, where the exact sampler repeats nothing.
Data make_data(const RunOptions& options, const Recipe& recipe, const torch::Device& device,
               const ProcessGroup& group) {
  const auto home = options.pin_memory ? torch::Device(torch::kCPU) : device;  // pinned: to travel
  const auto read = [&](Split split, std::int64_t limit) {
    return std::make_shared<MnistDataset>(options.data_root, split,
                                          MnistOptions{recipe.normalization(), limit, home});
  };
  const auto train = read(Split::kTrain, options.limit_train);
  const auto test = read(Split::kTest, options.limit_test);
  const auto shift = options.augment_shift ? recipe.make_shift() : nullptr;
  const auto batches = divide_batches(train->size(), {.mode = options.batch_mode,
                                                      .batch_size = recipe.batch_size(),
                                                      .seed = recipe.seed(),
                                                      .rank = group.rank(),
                                                      .world_size = group.world_size()});
  const auto test_part = std::make_shared<ExactEvalSampler>(
      test->size(),
      ExactEvalSamplerOptions{.world_size = group.world_size(), .rank = group.rank()});
  return {.train = DataLoader(train, {.batch_sampler = batches,
                                      .num_workers = options.num_workers,
                                      .pin_memory = options.pin_memory,
                                      .transform = shift}),
          .test = DataLoader(test, {.batch_size = recipe.eval_batch_size(),
                                    .sampler = test_part,
                                    .num_workers = options.num_workers,
                                    .pin_memory = options.pin_memory})};
}

// Seeded just before the weights are drawn: the same seed gives the same network everywhere.
// DistributedDataParallel makes sure of it and averages the gradients from then on.
std::shared_ptr<Model> make_model(const RunOptions& options, const Recipe& recipe,
                                  const torch::Device& device, const ProcessGroup& group) {
  torch::manual_seed(recipe.seed());
  auto model = recipe.make_model();
  if (!options.load.empty()) load_model(*model, options.load);
  model->to(device);
  return std::make_shared<DistributedDataParallel>(
      model, group,
      DistributedDataParallelOptions{.device_ids = {device},
                                     .reducer = {.check_replicas = options.check_replicas}});
}

// One pass over the training set. The order of an epoch is a function of its number.
void train_epoch(Model& model, DataLoader& loader, torch::optim::Optimizer& optimizer,
                 const Recipe& recipe, const torch::Device& device, RunRecord& record) {
  model.train();
  for (const Batch& cpu_batch : loader) {
    const Batch batch = cpu_batch.to(device);
    const RandomScope random({recipe.seed(), batch.epoch, batch.positions});
    const auto loss = recipe.loss(model.forward(batch.images), batch);
    loss.backward();
    optimizer.step();
    record.step(batch, loss, model);
    optimizer.zero_grad();
  }
}

// What the tutorials call train_ddp: runs in every process. `group` meets the others at
// MASTER_ADDR:MASTER_PORT as rank RANK of WORLD_SIZE (setup), and leaves when run ends (cleanup).
void run(const RunOptions& options) {
  const ProcessGroup group = init_process_group(options.process_group);
  const Recipe recipe(options.recipe, group.world_size());
  RunRecord record(options.record, recipe, group);
  const auto threads =
      prepare_process({.requested = options.threads, .local_world_size = group.local_world_size()});
  const auto device = choose_device(options.device, record.log(), group.local_rank());
  auto data = make_data(options, recipe, device, group);
  auto model = make_model(options, recipe, device, group);
  auto optimizer = recipe.make_optimizer(model->parameters());
  auto scheduler = recipe.make_scheduler(*optimizer);
  record.begin({.device = device, .threads = threads}, data.train, data.test, *model);

  for (std::int64_t epoch = 1; epoch <= recipe.epochs(); ++epoch) {
    data.train.set_epoch(epoch - 1);
    record.begin_epoch(epoch);
    train_epoch(*model, data.train, *optimizer, recipe, device, record);
    scheduler->step();
    record.end_epoch();
  }

  record.begin_testing();
  const Evaluation result = sum_over_ranks(evaluate(*model, data.test, recipe, device), group);
  require_all_seen(result, data.test.dataset().size());
  require_equal_replicas(*model, group);
  record.finish(result, *model);
  if (!options.save.empty() && group.rank() == 0) save_model(*model, options.save);
}

}  // namespace

int main(int argc, char** argv) {
  return ladder::run_main(argc, argv, run, {.distributed = true, .launcher = true});
}
