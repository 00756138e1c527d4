// SPDX-License-Identifier: Apache-2.0
#include "mnist/recipe.h"

#include <ATen/Context.h>
#include <fmt/core.h>
#include <torch/types.h>

#include <cmath>
#include <utility>

#include "bridges/exported_program/exported_module.h"
#include "ladder/data/random_shift.h"
#include "ladder/optim/adam.h"
#include "ladder/optim/schedules.h"
#include "ladder/optim/sgd.h"

namespace mnist {
namespace {

using namespace ladder;

}  // namespace

Recipe::Recipe(const RecipeOptions& options, int world_size) : options_(with_defaults(options)) {
  require_values<RecipeOptions>(tables::kRecipe, options);
  require_values<RecipeOptions>(tables::kScheduler, options);
  if (*options_.normalize) normalization_ = kMnistNormalization;
  if (options_.tf32) at::globalContext().setAllowTF32CuBLAS(true);
  if (options_.scale_lr == LrScaling::kLinear) *options_.lr *= world_size;
  if (options_.scale_lr == LrScaling::kSqrt) *options_.lr *= std::sqrt(world_size);
}

std::shared_ptr<Model> Recipe::make_model() const {
  if (!options_.network.empty()) return std::make_shared<ExportedModule>(options_.network);
  NetworkOptions network{.head = head(), .math = math(), .width = options_.width};
  if (name() == "convnet") return make_conv_net(network);
  if (name() == "basicnet") return make_basic_net(network);
  network.depth = *options_.depth;
  return make_stack_net(network);
}

std::unique_ptr<torch::optim::Optimizer> Recipe::make_optimizer(
    std::vector<torch::Tensor> parameters) const {
  if (name() == "convnet") {
    return std::make_unique<SGD>(std::move(parameters), SgdOptions{.lr = lr()});
  }
  return std::make_unique<AdamW>(std::move(parameters), AdamWOptions{.lr = lr()});
}

std::unique_ptr<LrScheduler> Recipe::make_scheduler(torch::optim::Optimizer& optimizer) const {
  if (options_.scheduler == "step") return std::make_unique<StepLR>(optimizer);
  return constant_schedule(optimizer);
}

torch::Tensor Recipe::loss_sum(const torch::Tensor& output, const torch::Tensor& targets) const {
  constexpr std::int64_t kIgnoreIndex = -100;
  if (options_.label_smoothing > 0.0) {
    return torch::cross_entropy_loss(output, targets, /*weight=*/{}, at::Reduction::Sum,
                                     kIgnoreIndex, options_.label_smoothing);
  }
  if (head() == Head::kLogSoftmax) {
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
      RandomShiftOptions{.seed = seed(), .fill = normalization_.background()});
}

std::string Recipe::accuracy_line(double accuracy) const {
  return name() == "convnet" ? fmt::format("Accuracy is {:.2f}%", accuracy)
                             : fmt::format("Accuracy: {:.2f}", accuracy);
}

}  // namespace mnist
