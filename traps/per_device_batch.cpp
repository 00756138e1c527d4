// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <string>

#include "ladder/data/distributed_sampler.h"
#include "ladder/monitor/evaluation.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "traps/ranks.h"
#include "traps/report.h"

namespace ladder::traps {
namespace {

struct Sets {
  std::shared_ptr<const mnist::Dataset> train;
  std::shared_ptr<const mnist::Dataset> test;
};

struct Trained {
  std::int64_t steps = 0;
  double lr = 0.0;
  double accuracy = 0.0;
};

Trained train(const Sets& sets, const ProcessGroup& group, BatchMode mode, mnist::LrScaling scaling,
              const char* side = "") {
  const Recipe recipe({.name = "convnet", .lr = 1e-3, .scale_lr = scaling}, group.world_size());
  DistributedDataParallel model(seeded_model(recipe), group);
  const auto optimizer = recipe.make_optimizer(model.parameters());
  const auto batches = divide_batches(
      sets.train->size(),
      {.mode = mode, .batch_size = 32, .rank = group.rank(), .world_size = group.world_size()});
  const DataLoader loader(sets.train, {.batch_sampler = batches});
  Recorder recorder(side, model);
  train_epoch(model, loader, *optimizer, recipe, &recorder);
  const auto part = std::make_shared<ExactEvalSampler>(
      sets.test->size(), ExactEvalSamplerOptions{group.world_size(), group.rank()});
  const auto local =
      evaluate(model, DataLoader(sets.test, {.sampler = part}), recipe.criterion(), torch::kCPU);
  return {loader.size(), recipe.lr(), sum_over_ranks(local, group).accuracy()};
}

void show(void (*side)(const std::string&, const std::string&), const std::string& mode,
          const Trained& trained) {
  side(mode + ": steps", std::to_string(trained.steps));
  side(mode + ": learning rate", fmt::format("{:g}", trained.lr));
  side(mode + ": accuracy", percent_text(trained.accuracy));
}

}  // namespace

void per_device_batch() {
  const auto recipe = quick_recipe();
  const Sets sets = {images_of(Split::kTrain, recipe, 6'400),
                     images_of(Split::kTest, recipe, 2'000)};
  on_ranks(2, [&](const ProcessGroup& group) {
    const auto wrong =
        train(sets, group, BatchMode::kPerDevice, mnist::LrScaling::kNone, "mistake");
    const auto global = train(sets, group, BatchMode::kGlobal, mnist::LrScaling::kNone, "guard");
    const auto scaled = train(sets, group, BatchMode::kPerDevice, mnist::LrScaling::kLinear);
    require(wrong.accuracy + 1 < global.accuracy, "half of the steps reached the same accuracy");
    require(wrong.accuracy + 1 < scaled.accuracy, "the larger learning rate had no effect");
    if (group.rank() != 0) return;
    show(mistake, "per device", wrong);
    show(guard, "global", global);
    show(guard, "scaled", scaled);
  });
}

}  // namespace ladder::traps
