// SPDX-License-Identifier: Apache-2.0
#include "mnist/recipe.h"

#include <fmt/core.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/core/largest_counts.h"
#include "ladder/data/random_shift.h"
#include "ladder/optim/adam.h"
#include "ladder/optim/schedules.h"
#include "ladder/optim/sgd.h"

namespace mnist {
namespace {

using namespace ladder;

const std::array<std::string, 2> kRecipeNames = {"basicnet", "convnet"};
const std::array<std::string, 2> kHeadNames = {"log-softmax", "logits"};
const std::array<std::string, 2> kSchedulerNames = {"none", "step"};

Head head_named(const std::string& name) {
  if (name == kHeadNames[0]) return Head::kLogSoftmax;
  if (name == kHeadNames[1]) return Head::kLogits;
  throw UsageError::unknown_name("--head", name, kHeadNames);
}

template <typename Number>
void require(bool holds, const char* flag, Number value, const std::string& range) {
  if (!holds) throw UsageError::out_of_range(flag, value, range, "leave it unset for the default");
}

void require_in(const char* flag, std::int64_t value, std::int64_t least, std::int64_t most) {
  require(value >= least && value <= most, flag, value, fmt::format("{} to {}", least, most));
}

}  // namespace

Recipe::Recipe(const RecipeOptions& options, int world_size)
    : name_(options.name),
      math_(options.math),
      width_(options.width),
      label_smoothing_(options.label_smoothing),
      seed_(options.seed) {
  if (std::find(kRecipeNames.begin(), kRecipeNames.end(), name_) == kRecipeNames.end()) {
    throw UsageError::unknown_name("--recipe", name_, kRecipeNames);
  }
  take(options);
  check();
  scale_lr(options.scale_lr, world_size);
}

void Recipe::take(const RecipeOptions& options) {
  const RecipeDefaults defaults = recipe_defaults(name_);
  epochs_ = options.epochs.value_or(defaults.epochs);
  batch_size_ = options.batch_size.value_or(defaults.batch_size);
  eval_batch_size_ = options.eval_batch_size.value_or(defaults.eval_batch_size);
  lr_ = options.lr.value_or(defaults.lr);
  scheduler_ = options.scheduler;
  head_ = head_named(options.head.value_or(defaults.head));
  if (options.normalize.value_or(defaults.normalize)) normalization_ = kMnistNormalization;
}

void Recipe::check() const {
  require_in("--epochs", epochs_, 0, kMostEpochs);
  require_in("--batch-size", batch_size_, 1, kMostSamplesPerBatch);
  require_in("--eval-batch-size", eval_batch_size_, 1, kMostSamplesPerBatch);
  require_in("--width", width_, 1, kLargestWidth);
  require(lr_ >= 0.0 && std::isfinite(lr_), "--lr", lr_, "a finite number >= 0");
  if (std::find(kSchedulerNames.begin(), kSchedulerNames.end(), scheduler_) ==
      kSchedulerNames.end()) {
    throw UsageError::unknown_name("--scheduler", scheduler_, kSchedulerNames);
  }
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
