// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <functional>
#include <memory>
#include <string>

#include "ladder/accelerate/accelerator.h"
#include "ladder/core/error.h"
#include "ladder/nn/random_scope.h"
#include "ladder/optim/sgd.h"
#include "traps/ranks.h"
#include "traps/report.h"

namespace ladder::traps {
namespace {

using Backward = std::function<void(const torch::Tensor&)>;

// The norm of the gradient of a window of four batches.
template <typename Loader>
double norm_of_window(Accelerator& accelerator, Loader& loader, Model& model, const Recipe& recipe,
                      const Backward& backward, const char* side) {
  Recorder recorder(side, model);
  loader.set_epoch(0);
  double norm = 0.0;
  for (const Batch& batch : loader) {
    const auto accumulation = accelerator.accumulate(model);
    const RandomScope random({recipe.seed(), batch.epoch, batch.positions});
    const auto loss = recipe.loss(model.forward(batch.inputs), batch);
    backward(loss);
    if (accelerator.sync_gradients()) {
      norm = flat_gradients(model).norm().template item<double>();
      recorder.step(batch, loss, model);
    } else {
      recorder.add(batch, loss);
    }
  }
  return norm;
}

}  // namespace

void plain_backward() {
  const Recipe recipe({.name = "basicnet"});
  const auto images = images_of(Split::kTrain, recipe, 256);
  on_processes(2, [&] {
    Accelerator accelerator({.gradient_accumulation = {.num_steps = 4},
                             .cpu = true,
                             .threads = 1,
                             .debug = true,
                             .quiet = true});
    const auto network = seeded_model(recipe);
    const std::shared_ptr<torch::optim::Optimizer> still =
        std::make_shared<SGD>(network->parameters(), SgdOptions{.lr = 0.0});
    auto [model, optimizer, loader] =
        accelerator.prepare(network, still, DataLoader(images, {.batch_size = 64}));
    const double right = norm_of_window(
        accelerator, loader, *model, recipe, [&](const auto& loss) { accelerator.backward(loss); },
        "guard");
    optimizer->step();
    optimizer->zero_grad();
    const double wrong = norm_of_window(
        accelerator, loader, *model, recipe, [](const auto& loss) { loss.backward(); }, "mistake");
    const auto error = error_of<UsageError>([&, &descent = optimizer] { descent->step(); });
    if (!accelerator.is_main_process()) return;
    mistake("norm of the gradient", fmt::format("{:.4f}", wrong));
    mistake("times too large", fmt::format("{:.2f}", wrong / right));
    guard("norm of the gradient", fmt::format("{:.4f}", right));
    guard("error with --debug", error);
  });
}

}  // namespace ladder::traps
