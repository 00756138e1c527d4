// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <cmath>
#include <string>

#include "ladder/amp/grad_scaler.h"
#include "ladder/core/error.h"
#include "traps/ranks.h"
#include "traps/report.h"

namespace ladder::traps {

void unscale_twice() {
  const auto recipe = quick_recipe();
  const auto images = images_of(Split::kTrain, recipe, 64);
  on_processes(1, [&] {
    const auto model = seeded_model(recipe);
    const auto optimizer = recipe.make_optimizer(model->parameters());
    const Batch batch = *DataLoader(images, {.batch_size = 64}).begin();
    GradScaler scaler;
    Recorder twice_recorder("mistake", *model);
    Recorder once_recorder("guard", *model);
    const auto loss = recipe.loss(model->forward(batch.inputs), batch);
    scaler.scale(loss).backward();
    scaler.unscale_(*optimizer);
    const double once = flat_gradients(*model).norm().item<double>();
    once_recorder.step(batch, loss, *model);
    const auto error = error_of<UsageError>([&] { scaler.unscale_(*optimizer); });
    // A second call without the guard divides the gradients again.
    for (auto& parameter : model->parameters()) parameter.mutable_grad().div_(scaler.get_scale());
    twice_recorder.step(batch, loss, *model);
    const double twice = flat_gradients(*model).norm().item<double>();
    require(std::abs(once / twice / scaler.get_scale() - 1.0) < 0.01,
            "the second division had no effect");
    mistake("norm of the gradient", fmt::format("{:.1e}", twice));
    mistake("times too small", fmt::format("{:.0f}", once / twice));
    guard("norm of the gradient", fmt::format("{:.1e}", once));
    guard("error", error);
  });
}

}  // namespace ladder::traps
