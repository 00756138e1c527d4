// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <string>

#include "ladder/core/clock.h"
#include "ladder/monitor/evaluation.h"
#include "ladder/nn/state_dict.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "traps/ranks.h"
#include "traps/report.h"

namespace ladder::traps {
namespace {

constexpr std::int64_t kImages = 3'200;
using Images = std::shared_ptr<const mnist::Dataset>;

struct Trained {
  std::int64_t read = 0;  // images, by all ranks
  double seconds = 0.0;
  std::string weights;
  std::int64_t world_size = 0;  // of the loader
};

Trained train(const Recipe& recipe, const DataLoader& loader, const ProcessGroup& group,
              const char* side = "") {
  DistributedDataParallel model(seeded_model(recipe), group);
  const auto optimizer = recipe.make_optimizer(model.parameters());
  Evaluation read;
  for (const auto& plan : loader.batch_indices())
    read.seen += static_cast<std::int64_t>(plan.indices.size());
  Recorder recorder(side, model);
  const double start = steady_seconds();
  train_epoch(model, loader, *optimizer, recipe, &recorder);
  return {.read = sum_over_ranks(read, group).seen,
          .seconds = steady_seconds() - start,
          .weights = weights_sha256(unwrapped_state_dict(model)),
          .world_size = loader.batch_sampler()->world_size()};
}

// Every rank reads all images: in Python, a DataLoader with shuffle=True and no sampler.
DataLoader whole_loader(const Images& images) {
  return DataLoader(images, {.batch_size = 64, .shuffle = true});
}

}  // namespace

void no_sampler() {
  const auto recipe = quick_recipe();
  const auto images = images_of(Split::kTrain, recipe, kImages);
  on_ranks(2, [&](const ProcessGroup& group) {
    const auto alone = train(recipe, whole_loader(images), ProcessGroup::single());
    const auto wrong = train(recipe, whole_loader(images), group, "mistake");
    const auto right = train(recipe, divided_loader(images, group), group, "guard");
    require(wrong.weights == alone.weights, "two ranks with equal batches differ from one rank");
    require(right.read == kImages, "the divided loader did not read each image once");
    require(wrong.world_size == 1 && right.world_size == 2,
            "expected loaders with world sizes 1 and 2");
    if (group.rank() != 0) return;
    mistake("images read", fmt::format("{} of {}", wrong.read, kImages));
    mistake("seconds", fmt::format("{:.1f}", wrong.seconds));
    mistake("same weights as one rank", "yes");
    mistake("world size of the loader", std::to_string(wrong.world_size));
    guard("images read", fmt::format("{} of {}", right.read, kImages));
    guard("seconds", fmt::format("{:.1f}", right.seconds));
    guard("world size of the loader", std::to_string(right.world_size));
  });
}

}  // namespace ladder::traps
