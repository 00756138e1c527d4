// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <memory>
#include <string>

#include "ladder/exact/exact_data_parallel.h"
#include "ladder/nn/state_dict.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "traps/ranks.h"
#include "traps/report.h"

namespace ladder::traps {
namespace {

constexpr std::int64_t kImages = 1'250;  // 20 steps, the last with 34 images
constexpr std::int64_t kMicroBatch = 16;

using Images = std::shared_ptr<const mnist::Dataset>;

struct Trained {
  std::string digest;
  torch::Tensor parameters;
};

Trained train(const Recipe& recipe, const Images& images, const ProcessGroup& group, bool exact,
              const char* side = "") {
  std::shared_ptr<Model> model;
  if (exact) {
    model = std::make_shared<ExactDataParallel>(
        seeded_model(recipe), group, ExactDataParallelOptions{.micro_batch = kMicroBatch});
  } else {
    model = std::make_shared<DistributedDataParallel>(seeded_model(recipe), group);
  }
  const auto optimizer = recipe.make_optimizer(model->parameters());
  const auto loader = divided_loader(images, group, 64, exact ? kMicroBatch : 0);
  Recorder recorder(side, *model, group.rank(), group.world_size());
  train_epoch(*model, loader, *optimizer, recipe, &recorder);
  return {weights_sha256(unwrapped_state_dict(*model)).substr(0, 16), flat_parameters(*model)};
}

// Trains on `count` ranks, and on rank 0 alone.
void compare(const Recipe& recipe, const Images& images, int count, bool exact) {
  const auto show = exact ? guard : mistake;
  on_ranks(count, [&](const ProcessGroup& group) {
    const bool records = count == 2 && !exact;
    const auto several = train(recipe, images, group, exact, records ? "mistake" : "");
    if (group.rank() != 0) return;
    const auto one = train(recipe, images, ProcessGroup::single(), exact, records ? "guard" : "");
    const double apart = distance(several.parameters, one.parameters);
    require((several.digest == one.digest) == exact,
            exact ? "exact sums depend on the number of ranks" : "sums of floats do not");
    if (count == 2) show("weights of 1 rank", one.digest);
    show(fmt::format("weights of {} ranks", count),
         fmt::format("{}, distance {}", several.digest, distance_text(apart)));
  });
}

}  // namespace

void two_are_not_one() {
  const Recipe recipe({.name = "basicnet"});
  const auto images = images_of(Split::kTrain, recipe, kImages);
  for (const bool exact : {false, true}) {
    for (const int count : {2, 3}) compare(recipe, images, count, exact);
  }
}

}  // namespace ladder::traps
