// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <memory>
#include <optional>
#include <string>

#include "ladder/accelerate/accelerator.h"
#include "ladder/optim/lr_scheduler.h"
#include "traps/ranks.h"
#include "traps/report.h"

namespace ladder::traps {
namespace {

struct Rates {
  std::string of_epochs;
  int steps_per_call = 0;
};

// Learning rates of six epochs with StepLR(step_size=2), one step per epoch.
Rates trained(const std::shared_ptr<const mnist::Dataset>& images, const Recipe& recipe,
              Accelerator& accelerator, const char* side) {
  auto model = seeded_model(recipe);
  const std::shared_ptr<torch::optim::Optimizer> descent =
      recipe.make_optimizer(model->parameters());
  const std::shared_ptr<LrScheduler> steps =
      std::make_shared<StepLR>(*descent, StepLrOptions{.step_size = 2});
  auto [network, optimizer, loader, scheduler] = accelerator.prepare(
      model, descent, DataLoader(images, {.batch_size = 64, .shuffle = true}), steps);
  Rates rates{.of_epochs = "", .steps_per_call = scheduler->steps_per_call()};
  Recorder recorder(side, *network);
  for (int epoch = 0; epoch < 6; ++epoch) {
    rates.of_epochs += fmt::format("{}{:g}", epoch == 0 ? "" : " ", scheduler->last_lr().front());
    for (const Batch& batch : loader) {
      const auto loss = recipe.loss(network->forward(batch.inputs), batch);
      accelerator.backward(loss);
      optimizer->step();
      recorder.step(batch, loss, *network, descent.get());
      optimizer->zero_grad();
    }
    scheduler->step();
  }
  return rates;
}

}  // namespace

void scheduler_too_fast() {
  const auto recipe = quick_recipe(0.1);
  const auto images = images_of(Split::kTrain, recipe, 256);
  const auto train = [&](void (*side)(const std::string&, const std::string&),
                         std::optional<int> steps_per_call) {
    on_processes(2, [&, side, steps_per_call] {
      // Accelerate's own mode: the batch grows with the processes, and so do the scheduler's steps.
      Accelerator accelerator({.cpu = true,
                               .threads = 1,
                               .data_loader = {.mode = LoaderMode::kPerProcess},
                               .scheduler_steps_per_call = steps_per_call,
                               .quiet = true});
      const auto rates = trained(images, recipe, accelerator, steps_per_call ? "guard" : "mistake");
      require(rates.steps_per_call == steps_per_call.value_or(2),
              "another number of steps per call");
      if (!accelerator.is_main_process()) return;
      side("steps per step() call", std::to_string(rates.steps_per_call));
      side("rates of epochs 1 to 6", rates.of_epochs);
    });
  };
  train(mistake, std::nullopt);
  train(guard, 1);
}

}  // namespace ladder::traps
