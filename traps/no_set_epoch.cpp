// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <cstddef>
#include <vector>

#include "ladder/accelerate/accelerator.h"
#include "ladder/data/data_loader.h"
#include "traps/ranks.h"
#include "traps/report.h"

namespace ladder::traps {
namespace {

std::vector<std::int64_t> order_of(const DataLoader& loader) {
  std::vector<std::int64_t> order;
  for (const auto& plan : loader.batch_indices()) {
    order.insert(order.end(), plan.indices.begin(), plan.indices.end());
  }
  return order;
}

std::int64_t equal_positions(const std::vector<std::int64_t>& one,
                             const std::vector<std::int64_t>& other) {
  std::int64_t equal = 0;
  for (std::size_t i = 0; i < one.size(); ++i) equal += one[i] == other[i] ? 1 : 0;
  return equal;
}

// Two epochs of a prepared loader without set_epoch.
bool advances(const DataLoader& loader) {
  Accelerator accelerator({.cpu = true, .threads = 1, .quiet = true});
  const auto prepared = accelerator.prepare(limit_batches(loader, 3));
  for (const Batch& batch : prepared) require(batch.epoch == 0, "the first epoch is not number 0");
  bool next = false;
  for (const Batch& batch : prepared) next = batch.epoch == 1;
  return next;
}

// Two epochs of a training without set_epoch, or with it.
void record(const char* side, const std::shared_ptr<const mnist::Dataset>& images, bool advances) {
  const auto recipe = quick_recipe();
  const auto model = seeded_model(recipe);
  Recorder recorder(side, *model);
  if (!recorder.records()) return;
  const auto optimizer = recipe.make_optimizer(model->parameters());
  DataLoader loader(images, {.batch_size = 64, .shuffle = true});
  train_epoch(*model, loader, *optimizer, recipe, &recorder);
  if (advances) loader.set_epoch(1);
  train_epoch(*model, loader, *optimizer, recipe, &recorder);
}

}  // namespace

void no_set_epoch() {
  const auto images = images_of(Split::kTrain, quick_recipe(), 0);
  const auto few = images_of(Split::kTrain, quick_recipe(), 320);
  on_processes(1, [&] {
    DataLoader loader(images, {.batch_size = 64, .shuffle = true});
    const auto first = order_of(loader);
    const auto second = order_of(loader);  // without set_epoch in between
    const auto without = equal_positions(first, second);
    loader.set_epoch(1);
    const auto with = equal_positions(first, order_of(loader));
    require(without == images->size(), "the order changed without set_epoch");
    const bool next = advances(loader);
    require(next, "a prepared loader repeats its epoch");
    record("mistake", few, false);
    record("guard", few, true);
    mistake("images at equal positions", fmt::format("{} of {}", without, images->size()));
    guard("images at equal positions", fmt::format("{} of {}", with, images->size()));
    guard("prepared loader advances", "yes");
  });
}

}  // namespace ladder::traps
