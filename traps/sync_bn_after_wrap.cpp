// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <string>

#include "ladder/core/error.h"
#include "ladder/parallel/convert_sync_batchnorm.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "traps/ranks.h"
#include "traps/report.h"

namespace ladder::traps {
namespace {

torch::Tensor gradient(Model& model, const Batch& batch, const Recipe& recipe,
                       const char* side = "") {
  Recorder recorder(side, model);
  model.train();
  const auto loss = recipe.loss(model.forward(batch.inputs), batch);
  loss.backward();
  recorder.step(batch, loss, model);
  return flat_gradients(model);
}

Batch first_batch(const DataLoader& loader) { return *loader.begin(); }

}  // namespace

void sync_bn_after_wrap() {
  const auto recipe = quick_recipe();
  const auto images = images_of(Split::kTrain, recipe, 64);
  on_ranks(2, [&](const ProcessGroup& group) {
    const auto slice = first_batch(divided_loader(images, group));
    const auto whole = first_batch(divided_loader(images, ProcessGroup::single()));
    const auto of_one = gradient(*seeded_model(recipe), whole, recipe);
    // A program that ignores the error continues with one local BatchNorm per rank.
    DistributedDataParallel local(seeded_model(recipe), group);
    const auto error = error_of<UsageError>([&] { convert_sync_batchnorm(local, group); });
    const double wrong = distance(gradient(local, slice, recipe, "mistake"), of_one);
    const auto network = seeded_model(recipe);
    const int layers = convert_sync_batchnorm(*network, group);
    DistributedDataParallel global(network, group);
    const double right = distance(gradient(global, slice, recipe, "guard"), of_one);
    require(wrong > 0.01, "one BatchNorm per rank gives the same gradient");
    require(right < 1e-5, "SyncBatchNorm gives another gradient than one process");
    if (group.rank() != 0) return;
    mistake("gradient's distance", distance_text(wrong) + " from that of one process");
    guard("layers converted", std::to_string(layers));
    guard("gradient's distance", distance_text(right));
    guard("error", error);
  });
}

}  // namespace ladder::traps
