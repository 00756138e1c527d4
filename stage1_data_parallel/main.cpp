// SPDX-License-Identifier: Apache-2.0
// Stage 1: DataParallel. One process, one loop; each batch is divided over several devices.
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
#include "ladder/data/mnist_dataset.h"
#include "ladder/nn/model.h"
#include "ladder/nn/random_scope.h"
#include "ladder/parallel/data_parallel.h"
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

// The whole set lies on the device as bytes; a loader gathers and normalises one batch at a time.
Data make_data(const RunOptions& options, const Recipe& recipe, const torch::Device& device) {
  const auto home = options.pin_memory ? torch::Device(torch::kCPU) : device;  // pinned: to travel
  const auto read = [&](Split split, std::int64_t limit) {
    return std::make_shared<MnistDataset>(options.data_root, split,
                                          MnistOptions{recipe.normalization(), limit, home});
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
// The network lies on the first device; DataParallel keeps a replica of it on each of them.
std::shared_ptr<Model> make_model(const RunOptions& options, const Recipe& recipe,
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

void run(const RunOptions& options) {
  const Recipe recipe(options.recipe);
  RunRecord record(options.record, recipe);
  const auto threads = prepare_process({.requested = options.threads});
  const auto devices = choose_devices(options.device_ids, options.device, record.log());
  const auto device = choose_output_device(options.output_device, devices);
  auto data = make_data(options, recipe, device);
  auto model = make_model(options, recipe, devices, device);
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
  const Evaluation result = evaluate(*model, data.test, recipe, device);
  require_all_seen(result, data.test.dataset().size());
  record.finish(result, *model);
  if (!options.save.empty()) save_model(*model, options.save);
}

}  // namespace

int main(int argc, char** argv) { return ladder::run_main(argc, argv, run, {.device_ids = true}); }
