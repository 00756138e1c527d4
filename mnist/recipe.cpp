// SPDX-License-Identifier: Apache-2.0
#include "mnist/recipe.h"

#include <fmt/core.h>
#include <torch/types.h>

#include <cmath>
#include <utility>

#include "ladder/data/random_shift.h"
#include "ladder/optim/adam.h"
#include "ladder/optim/schedules.h"
#include "ladder/optim/sgd.h"

namespace mnist {
namespace {

using namespace ladder;

}  // namespace

Recipe::Recipe(const RecipeOptions& options, int world_size) {
  require_values<RecipeOptions>(tables::kRecipe, options);
  require_values<RecipeOptions>(tables::kScheduler, options);
  const auto chosen = with_defaults(options);
  name_ = chosen.name;
  epochs_ = *chosen.epochs;
  batch_size_ = *chosen.batch_size;
  eval_batch_size_ = *chosen.eval_batch_size;
  lr_ = *chosen.lr;
  scheduler_ = chosen.scheduler;
  head_ = *chosen.head == "logits" ? Head::kLogits : Head::kLogSoftmax;
  math_ = chosen.math;
  width_ = chosen.width;
  label_smoothing_ = chosen.label_smoothing;
  seed_ = chosen.seed;
  if (*chosen.normalize) normalization_ = kMnistNormalization;
  scale_lr(chosen.scale_lr, world_size);
}

void Recipe::scale_lr(LrScaling scaling, int world_size) {
  if (scaling == LrScaling::kLinear) lr_ *= world_size;
  if (scaling == LrScaling::kSqrt) lr_ *= std::sqrt(world_size);
}

std::shared_ptr<Model> Recipe::make_model() const {
  if (name_ == "convnet") {
    return make_conv_net({.head = head_, .math = math_, .width = width_});
  }
  return make_basic_net({.head = head_, .math = math_, .width = width_});
}

std::unique_ptr<torch::optim::Optimizer> Recipe::make_optimizer(
    std::vector<torch::Tensor> parameters) const {
  if (name_ == "convnet") {
    return std::make_unique<SGD>(std::move(parameters), SgdOptions{.lr = lr_});
  }
  return std::make_unique<AdamW>(std::move(parameters), AdamWOptions{.lr = lr_});
}

std::unique_ptr<LrScheduler> Recipe::make_scheduler(torch::optim::Optimizer& optimizer) const {
  if (scheduler_ == "step") return std::make_unique<StepLR>(optimizer);
  return constant_schedule(optimizer);
}

torch::Tensor Recipe::loss_sum(const torch::Tensor& output, const torch::Tensor& targets) const {
  constexpr std::int64_t kIgnoreIndex = -100;
  if (label_smoothing_ > 0.0) {
    return torch::cross_entropy_loss(output, targets, /*weight=*/{}, at::Reduction::Sum,
                                     kIgnoreIndex, label_smoothing_);
  }
  if (head_ == Head::kLogSoftmax) {
    return torch::nll_loss(output, targets, /*weight=*/{}, at::Reduction::Sum);
  }
  return torch::cross_entropy_loss(output, targets, /*weight=*/{}, at::Reduction::Sum);
}

torch::Tensor Recipe::loss(const torch::Tensor& output, const Batch& batch) const {
  return loss(output, batch.targets, batch.num_items());
}

torch::Tensor Recipe::loss(const torch::Tensor& output, const torch::Tensor& targets,
                           const NumItems& num_items) const {
  return num_items.mean(criterion(), output, targets);
}

std::function<torch::Tensor(const torch::Tensor&, const torch::Tensor&, const NumItems&)>
Recipe::loss_function() const {
  return [recipe = *this](const torch::Tensor& output, const torch::Tensor& targets,
                          const NumItems& num_items) {
    return recipe.loss(output, targets, num_items);
  };
}

LossSum Recipe::criterion() const {
  return [recipe = *this](const torch::Tensor& output, const torch::Tensor& targets) {
    return recipe.loss_sum(output, targets);
  };
}

std::shared_ptr<const Transform> Recipe::make_transform(bool augment) const {
  if (!augment) return nullptr;
  return std::make_shared<RandomShift>(
      RandomShiftOptions{.seed = seed_, .fill = normalization_.background()});
}

std::string Recipe::accuracy_line(double accuracy) const {
  return name_ == "convnet" ? fmt::format("Accuracy is {:.2f}%", accuracy)
                            : fmt::format("Accuracy: {:.2f}", accuracy);
}

}  // namespace mnist
