// SPDX-License-Identifier: Apache-2.0
// Stage 0: one device. The baseline that every later stage is compared with.
//
//   build/bin/stage0_single_gpu                     train BasicNet on MNIST for one epoch
//   build/bin/stage0_single_gpu --recipe convnet    the BatchNorm network, three epochs
//
// It ends with two lines such as
//
//   Accuracy: 98.41
//   time elapsed: 25.31 seconds
//
// The same five functions stand in every stage, in this order: make_data, make_model,
// train_epoch, run, main. What a stage changes in them is its lesson.
#include <cstdint>
#include <memory>

#include "ladder/checkpoint/safetensors.h"
#include "ladder/core/device.h"
#include "ladder/data/data_loader.h"
#include "ladder/data/mnist_dataset.h"
#include "ladder/nn/model.h"
#include "ladder/nn/random_scope.h"
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
std::shared_ptr<Model> make_model(const RunOptions& options, const Recipe& recipe,
                                  const torch::Device& device) {
  torch::manual_seed(recipe.seed());
  auto model = recipe.make_model();
  if (!options.load.empty()) load_model(*model, options.load);
  model->to(device);
  return model;
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
  const auto device = choose_device(options.device, record.log());
  auto data = make_data(options, recipe, device);
  auto model = make_model(options, recipe, device);
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

int main(int argc, char** argv) { return ladder::run_main(argc, argv, run); }
