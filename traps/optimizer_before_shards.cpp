// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "ladder/parallel/distributed_data_parallel.h"
#include "ladder/parallel/fully_sharded_data_parallel.h"
#include "traps/ranks.h"
#include "traps/report.h"

namespace ladder::traps {
namespace {

// Python's fully_shard replaces the parameters, and an optimizer made before has the old ones.
std::vector<torch::Tensor> replaced(const Model& network) {
  std::vector<torch::Tensor> copies;
  for (const auto& parameter : network.parameters()) {
    copies.push_back(parameter.detach().clone().requires_grad_());
  }
  return copies;
}

}  // namespace

void optimizer_before_shards() {
  const auto recipe = quick_recipe();
  const auto images = images_of(Split::kTrain, recipe, 640);
  on_ranks(2, [&](const ProcessGroup& group) {
    const auto loader = divided_loader(images, group);
    const auto first = flat_parameters(*seeded_model(recipe));
    // The weights after training with an optimizer that is made before the division.
    const auto trained = [&](bool replaces, bool divides) {
      const auto network = seeded_model(recipe);
      const auto optimizer =
          recipe.make_optimizer(replaces ? replaced(*network) : network->parameters());
      std::shared_ptr<Model> model;
      if (divides) model = std::make_shared<FullyShardedDataParallel>(network, group);
      if (!divides) model = std::make_shared<DistributedDataParallel>(network, group);
      Recorder recorder(!divides ? "" : replaces ? "mistake" : "guard", *model);
      train_epoch(*model, loader, *optimizer, recipe, &recorder);
      model->eval();  // makes all units whole
      return flat_parameters(*model);
    };
    const double stays = distance(trained(true, true), first);
    const auto divided = trained(false, true);
    const double apart = distance(divided, trained(false, false));
    require(stays == 0.0, "the optimizer of the old parameters trains the new ones");
    require(apart == 0.0, "an optimizer made before the division trains other weights");
    if (group.rank() != 0) return;
    mistake("steps", std::to_string(loader.size()));
    mistake("weights moved by", distance_text(stays));
    guard("weights moved by", distance_text(distance(divided, first)));
    guard("distance from DDP", distance_text(apart));
  });
}

}  // namespace ladder::traps
