// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <cmath>
#include <string>

#include "ladder/armour/loss_guard.h"
#include "ladder/core/error.h"
#include "ladder/monitor/evaluation.h"
#include "ladder/nn/random_scope.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "traps/ranks.h"
#include "traps/report.h"

namespace ladder::traps {
namespace {

using Images = std::shared_ptr<const mnist::Dataset>;
using Loss = torch::Tensor (*)(const Recipe&, const torch::Tensor&, const Batch&);

torch::Tensor mean_of_rank(const Recipe& /*recipe*/, const torch::Tensor& output,
                           const Batch& batch) {
  return torch::nll_loss(output, batch.targets);
}

torch::Tensor part_of_global_mean(const Recipe& recipe, const torch::Tensor& output,
                                  const Batch& batch) {
  return recipe.loss(output, batch);
}

// Of one step on `images` images, divided over the group.
torch::Tensor gradient(const Recipe& recipe, const Images& images, const ProcessGroup& group,
                       Loss loss_of, const char* side = "") {
  DistributedDataParallel model(seeded_model(recipe), group);
  model.train();
  const Batch batch = *divided_loader(images, group).begin();
  const RandomScope random({recipe.seed(), batch.epoch, batch.positions});
  Recorder recorder(side, model);
  const auto loss = loss_of(recipe, model.forward(batch.inputs), batch);
  loss.backward();
  recorder.step(batch, loss, model);
  return flat_gradients(model);
}

// The last batch has one image, and the same weight as the others with 64.
void show_evaluation(const Recipe& recipe, const Images& test) {
  const auto model = seeded_model(recipe);
  const DataLoader loader(test, {.batch_size = 64});
  const auto exact = evaluate(*model, loader, recipe.criterion(), torch::kCPU);
  const torch::NoGradGuard no_grad;
  model->eval();
  double sum = 0.0;
  for (const Batch& batch : loader) {
    sum += torch::nll_loss(model->forward(batch.inputs), batch.targets).item<double>();
  }
  const double wrong = sum / static_cast<double>(loader.size());
  require(std::abs(wrong / exact.mean_loss() - 1.0) > 1e-5, "the last image makes no difference");
  mistake("loss of 1025 images", fmt::format("{:.5f}", wrong));
  guard("loss of 1025 images", fmt::format("{:.5f}", exact.mean_loss()));
}

// A rank without images divides zero by zero.
std::string nan_is_refused(const ProcessGroup& group) {
  const auto loss = torch::nll_loss(torch::empty({0, 10}), torch::empty({0}, torch::kInt64));
  const torch::nn::Module no_model;
  LossGuard guard(no_model, {});
  guard.begin_epoch(1);
  Batch batch;
  batch.inputs = torch::empty({0, 1});
  batch.global_size = 1;
  batch.world_size = group.world_size();
  batch.targets = torch::empty({0}, torch::kInt64);
  batch.indices = torch::empty({0}, torch::kInt64);
  return error_of<NumericError>([&] { guard.add(batch, loss, 1); });
}

}  // namespace

void mean_of_means() {
  const Recipe recipe({.name = "basicnet"});
  const auto three = images_of(Split::kTrain, recipe, 3);
  const auto test = images_of(Split::kTest, recipe, 1'025);
  on_ranks(2, [&](const ProcessGroup& group) {
    if (group.rank() == 0) show_evaluation(recipe, test);
    const auto of_one = gradient(recipe, three, ProcessGroup::single(), part_of_global_mean);
    const double wrong = distance(gradient(recipe, three, group, mean_of_rank, "mistake"), of_one);
    const double right =
        distance(gradient(recipe, three, group, part_of_global_mean, "guard"), of_one);
    const auto error = nan_is_refused(group);
    require(wrong > 0.01, "the mean of two means is the mean of all");
    require(right < 1e-5, "the loss by counts is not that of one process");
    if (group.rank() != 0) return;
    mistake("gradient of 2 + 1 images", distance_text(wrong) + " from that of one process");
    guard("gradient of 2 + 1 images", distance_text(right));
    guard("error of an empty mean", error);
  });
}

}  // namespace ladder::traps
