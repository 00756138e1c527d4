// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "ladder/core/error.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "ladder/parallel/replica_check.h"
#include "traps/ranks.h"
#include "traps/report.h"

namespace ladder::traps {
namespace {

// Python's DDP accepts calls of the wrapped network without an error.
double trained_apart(const Recipe& recipe, const DataLoader& loader, const ProcessGroup& group,
                     std::string& error) {
  const auto network = seeded_model(recipe);
  const auto optimizer = recipe.make_optimizer(network->parameters());
  Recorder recorder("mistake", *network);
  train_epoch(*network, loader, *optimizer, recipe, &recorder);
  error = error_of<DistributedError>([&] { require_equal_parameters(*network, group); });
  return distance_between_ranks(*network, group);
}

// Here the wrapper averages in each backward, whichever forward came before.
double trained_together(const Recipe& recipe, const DataLoader& loader, const ProcessGroup& group) {
  DistributedDataParallel model(seeded_model(recipe), group);
  const auto optimizer = recipe.make_optimizer(model.parameters());
  Recorder recorder("guard", model);
  train_epoch(model.module(), loader, *optimizer, recipe, &recorder);
  return distance_between_ranks(model, group);
}

}  // namespace

void raw_model_forward() {
  const auto recipe = quick_recipe();
  const auto images = images_of(Split::kTrain, recipe, 6'400);
  on_ranks(2, [&](const ProcessGroup& group) {
    const auto loader = divided_loader(images, group);
    std::string at_the_end;
    const double apart = trained_apart(recipe, loader, group, at_the_end);
    const double together = trained_together(recipe, loader, group);
    require(apart > 0.01, "the ranks have equal weights");
    require(together == 0.0, "the ranks have different weights with a wrapper");
    if (group.rank() != 0) return;
    mistake("steps", std::to_string(loader.size()));
    mistake("distance between ranks", distance_text(apart));
    guard("distance between ranks", distance_text(together));
    guard("error without the wrapper", at_the_end);
  });
}

}  // namespace ladder::traps
