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

std::int64_t same_places(const std::vector<std::int64_t>& one,
                         const std::vector<std::int64_t>& other) {
  std::int64_t same = 0;
  for (std::size_t i = 0; i < one.size(); ++i) same += one[i] == other[i] ? 1 : 0;
  return same;
}

// Two epochs of a prepared loader without set_epoch.
bool goes_on_by_itself(const DataLoader& loader) {
  Accelerator accelerator({.cpu = true, .threads = 1, .quiet = true});
  const auto prepared = accelerator.prepare(limit_batches(loader, 3));
  for (const Batch& batch : prepared) require(batch.epoch == 0, "the first epoch is not number 0");
  bool next = false;
  for (const Batch& batch : prepared) next = batch.epoch == 1;
  return next;
}

}  // namespace

void no_set_epoch() {
  const auto images = images_of(Split::kTrain, quick_recipe(), 0);
  on_processes(1, [&] {
    DataLoader loader(images, {.batch_size = 64, .shuffle = true});
    const auto first = order_of(loader);
    const auto second = order_of(loader);  // without set_epoch in between
    const auto unheard = same_places(first, second);
    loader.set_epoch(1);
    const auto heard = same_places(first, order_of(loader));
    require(unheard == images->size(), "the order changed by itself");
    const bool next = goes_on_by_itself(loader);
    require(next, "a prepared loader repeats its epoch");
    mistake("same image in both epochs", fmt::format("{} of {}", unheard, images->size()));
    guard("same with set_epoch", std::to_string(heard));
    guard("prepared: goes on by itself", "yes");
  });
}

}  // namespace ladder::traps
