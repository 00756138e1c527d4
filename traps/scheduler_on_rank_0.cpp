// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <string>

#include "ladder/core/error.h"
#include "ladder/optim/lr_scheduler.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "ladder/parallel/replica_check.h"
#include "traps/ranks.h"
#include "traps/report.h"

namespace ladder::traps {
namespace {

struct Trained {
  std::string rates;  // of the last epoch, rank by rank
  double distance = 0.0;
  std::string error;
};

Trained train(const Recipe& recipe, const std::shared_ptr<const mnist::Dataset>& images,
              const ProcessGroup& group, bool on_all_ranks) {
  DistributedDataParallel model(seeded_model(recipe), group);
  const auto optimizer = recipe.make_optimizer(model.parameters());
  StepLR scheduler(*optimizer, {.step_size = 1});
  auto loader = divided_loader(images, group);
  Recorder recorder(on_all_ranks ? "guard" : "mistake", model);
  Trained trained;
  for (int epoch = 0; epoch < 3; ++epoch) {
    const auto rate = torch::tensor(scheduler.last_lr().front(), torch::kFloat64);
    const auto rates = group.all_gather_into_tensor(rate);
    trained.rates = fmt::format("{:g} {:g}", rates[0].item<double>(), rates[1].item<double>());
    loader.set_epoch(epoch);
    train_epoch(model, loader, *optimizer, recipe, &recorder);
    if (on_all_ranks || group.rank() == 0) scheduler.step();
  }
  trained.distance = distance_between_ranks(model, group);
  if (on_all_ranks) {
    require_equal_parameters(model, group);
  } else {
    trained.error = error_of<DistributedError>([&] { require_equal_parameters(model, group); });
  }
  return trained;
}

}  // namespace

void scheduler_on_rank_0() {
  const auto recipe = quick_recipe();
  const auto images = images_of(Split::kTrain, recipe, 640);
  on_ranks(2, [&](const ProcessGroup& group) {
    const auto wrong = train(recipe, images, group, false);
    const auto right = train(recipe, images, group, true);
    require(wrong.distance > 1e-5, "the ranks have equal weights");
    require(right.distance == 0.0, "the ranks have different weights although all call step()");
    if (group.rank() != 0) return;
    mistake("rates in epoch 3", wrong.rates);
    mistake("distance between ranks", distance_text(wrong.distance));
    guard("rates in epoch 3", right.rates);
    guard("distance between ranks", distance_text(right.distance));
    guard("error", wrong.error);
  });
}

}  // namespace ladder::traps
