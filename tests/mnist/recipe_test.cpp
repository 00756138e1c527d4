// SPDX-License-Identifier: Apache-2.0
#include "mnist/recipe.h"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ladder/checkpoint/safetensors.h"
#include "ladder/core/error.h"
#include "ladder/nn/model.h"
#include "ladder/optim/adam.h"
#include "ladder/optim/fused_optimizer.h"
#include "ladder/optim/sgd.h"
#include "mnist/dataset.h"
#include "mnist/networks.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace mnist {
namespace {

using namespace ladder;

Recipe recipe_with_head(const std::string& head) { return Recipe({.head = head}); }

// Scores of `size` samples and their labels, as a loop has them on one rank.
struct Scores {
  explicit Scores(std::int64_t size) {
    torch::manual_seed(static_cast<std::uint64_t>(size));
    logits = (torch::randn({size, 10}) * 3).requires_grad_();
    batch.targets = torch::randint(10, {size}, torch::kInt64);
    batch.global_size = size;
  }

  torch::Tensor output(Head head) const {
    return head == Head::kLogSoftmax ? torch::log_softmax(logits, 1) : logits * 1.0;
  }

  torch::Tensor gradient_of(const torch::Tensor& loss) const {
    logits.mutable_grad() = torch::Tensor();
    loss.backward();
    return logits.grad().clone();
  }

  torch::Tensor logits;
  Batch batch;
};

torch::Tensor mean_loss(const Recipe& recipe, const Scores& scores) {
  const auto output = scores.output(recipe.head());
  return recipe.head() == Head::kLogSoftmax
             ? torch::nll_loss(output, scores.batch.targets)
             : torch::cross_entropy_loss(output, scores.batch.targets);
}

TEST(RecipeLoss, OnOneRankIsTheMeanToTheLastBitWithEitherHead) {
  for (const std::int64_t size : {1, 11, 32, 48, 49, 63, 64}) {
    const Scores scores(size);
    std::vector<torch::Tensor> losses;
    std::vector<torch::Tensor> gradients;
    for (const std::string head : {"log-softmax", "logits"}) {
      SCOPED_TRACE(testing::Message() << head << ", batch of " << size);
      const Recipe recipe = recipe_with_head(head);
      losses.push_back(recipe.loss(scores.output(recipe.head()), scores.batch));
      gradients.push_back(scores.gradient_of(losses.back()));
      const auto mean = mean_loss(recipe, scores);
      EXPECT_TRUE(torch::equal(losses.back(), mean));
      EXPECT_TRUE(torch::equal(gradients.back(), scores.gradient_of(mean)));
    }
    // Cross-entropy is made of the same two operations.
    EXPECT_TRUE(torch::equal(losses[0], losses[1]));
    EXPECT_TRUE(torch::equal(gradients[0], gradients[1]));
  }
  const auto sum = recipe_with_head("logits").criterion()(torch::zeros({3, 10}),
                                                          torch::tensor({1, 2, 3}, torch::kInt64));
  EXPECT_FLOAT_EQ(sum.item<float>(), static_cast<float>(3.0 * std::log(10.0)));
}

TEST(RecipeLoss, IsWhatPythonComputes) {
  ASSERT_EQ(at::get_cpu_capability(), "DEFAULT")
      << "the golden numbers are those of the plain kernels: set ATEN_CPU_CAPABILITY=default";
  const auto golden =
      load_safetensors(LADDER_SOURCE_DIR "/tests/golden/loss_heads.safetensors").tensors;
  for (const std::string name : {"nll", "cross_entropy"}) {
    const Recipe recipe = recipe_with_head(name == "nll" ? "log-softmax" : "logits");
    Scores scores(6);
    scores.logits = golden.at("logits").clone().requires_grad_();
    scores.batch.targets = golden.at("labels");
    const auto output = scores.output(recipe.head());
    const auto loss = recipe.loss(output, scores.batch);
    EXPECT_TRUE(torch::equal(output, golden.at(name + ".output"))) << name;
    EXPECT_TRUE(torch::equal(loss, golden.at(name + ".loss"))) << name;
    EXPECT_TRUE(torch::equal(scores.gradient_of(loss), golden.at(name + ".gradient"))) << name;
  }
}

// The gradients of `world_size` ranks with a slice of the batch each, averaged as DDP does.
torch::Tensor averaged_gradient(const Recipe& recipe, const Scores& scores,
                                std::int64_t world_size) {
  const std::int64_t size = scores.batch.size();
  auto sum = torch::zeros_like(scores.logits.detach());
  std::int64_t begin = 0;
  for (std::int64_t rank = 0; rank < world_size; ++rank) {
    const std::int64_t count = size / world_size + (rank < size % world_size ? 1 : 0);
    Batch slice = scores.batch;
    slice.targets = slice.targets.narrow(0, begin, count);
    slice.world_size = world_size;
    const auto output = scores.output(recipe.head()).narrow(0, begin, count);
    sum += scores.gradient_of(recipe.loss(output, slice));
    begin += count;
  }
  return sum / world_size;
}

TEST(RecipeLoss, WithSmoothingIsThatOfTransformers) {
  const auto& golden = golden_json("trainer.json").at("label_smoothing");
  EXPECT_EQ(golden.size(), 3U);
  const auto rows = [&](const nlohmann::json& matrix) {
    std::vector<torch::Tensor> tensors;
    for (const auto& row : matrix) {
      std::vector<double> values;
      for (const auto& value : row) values.push_back(number(value));
      tensors.push_back(torch::tensor(values, torch::kFloat32));
    }
    return torch::stack(tensors);
  };
  for (const auto& wanted : golden) {
    const Recipe recipe({.head = "logits", .label_smoothing = number(wanted["factor"])});
    const auto logits = rows(wanted["logits"]).requires_grad_();
    const auto labels = wanted["labels"].get<std::vector<std::int64_t>>();
    const auto counted = std::ssize(labels) - std::count(labels.begin(), labels.end(), -100);
    const auto loss = recipe.loss(logits, torch::tensor(labels), NumItems{.global = counted});
    loss.backward();
    // The sums are made in another order than there.
    EXPECT_NEAR(loss.item<double>(), number(wanted["loss"]), 1e-6 * number(wanted["loss"]));
    EXPECT_TRUE(torch::allclose(logits.grad(), rows(wanted["gradient"]), 1e-6, 1e-7));
  }
}

TEST(RecipeLoss, AveragedOverRanksGivesTheGradientOfTheGlobalMean) {
  for (const std::string head : {"log-softmax", "logits"}) {
    const Recipe recipe = recipe_with_head(head);
    for (const std::int64_t world_size : {2, 3, 7, 16}) {
      const Scores scores(11);  // with 16 ranks, five have nothing
      const auto wanted = scores.gradient_of(mean_loss(recipe, scores));
      const auto got = averaged_gradient(recipe, scores, world_size);
      const auto difference = ((got - wanted).norm() / wanted.norm()).item<double>();
      EXPECT_LT(difference, 1e-6);  // × W ÷ W rounds when W is not a power of two
    }
  }
}

TEST(RecipeLoss, OfAnEmptySliceIsZeroWithAZeroGradient) {
  for (const std::string head : {"log-softmax", "logits"}) {
    const Recipe recipe = recipe_with_head(head);
    Scores scores(0);
    scores.batch.global_size = 3;
    scores.batch.world_size = 4;
    const auto loss = recipe.loss(scores.output(recipe.head()), scores.batch);
    EXPECT_EQ(loss.item<float>(), 0.0F) << head;
    EXPECT_EQ(scores.gradient_of(loss).numel(), 0);
  }
}

TEST(Recipe, BasicnetIsTheDefaultConvnetThatOfTheTutorialAndStackHasADepth) {
  const Recipe recipe({});
  EXPECT_EQ(recipe.name(), "basicnet");
  EXPECT_EQ(recipe.epochs(), 1);
  EXPECT_EQ(recipe.batch_size(), 64);
  EXPECT_EQ(recipe.eval_batch_size(), 64);
  EXPECT_EQ(recipe.lr(), 1e-3);
  EXPECT_EQ(recipe.head(), Head::kLogSoftmax);
  EXPECT_EQ(recipe.math(), Math::kFast);
  EXPECT_EQ(recipe.seed(), 42U);
  EXPECT_EQ(recipe.normalization().mean, 0.1307);
  EXPECT_EQ(recipe.normalization().std, 0.3081);
  EXPECT_EQ(recipe.accuracy_line(98.41), "Accuracy: 98.41");
  EXPECT_TRUE(recipe.make_model()->named_children().contains("fc2"));
  const Recipe convnet({.name = "convnet"});
  EXPECT_EQ(convnet.epochs(), 3);
  EXPECT_EQ(convnet.batch_size(), 32);
  EXPECT_EQ(convnet.lr(), 1e-4);
  EXPECT_EQ(convnet.head(), Head::kLogits);
  EXPECT_EQ(convnet.normalization().mean, 0.0);
  EXPECT_EQ(convnet.normalization().std, 1.0);
  EXPECT_EQ(convnet.accuracy_line(91.554), "Accuracy is 91.55%");
  EXPECT_TRUE(convnet.make_model()->named_children().contains("layer2"));
  const Recipe stack({.name = "stack", .depth = 3});  // otherwise as basicnet
  EXPECT_EQ(stack.batch_size(), 64);
  EXPECT_EQ(stack.head(), Head::kLogSoftmax);
  EXPECT_EQ(stack.normalization().mean, 0.1307);
  EXPECT_EQ(stack.make_model()->named_children()["layers"]->children().size(), 3U);
  EXPECT_EQ(Recipe({.name = "stack"}).make_model()->named_children()["layers"]->children().size(),
            8U);
}

TEST(Recipe, TakesWhatTheUserSaysAndDecidesTheRest) {
  const Recipe recipe({.name = "convnet",
                       .epochs = 0,
                       .batch_size = 7,
                       .eval_batch_size = 1000,
                       .lr = 0.5,
                       .normalize = true,
                       .head = "log-softmax",
                       .seed = 1,
                       .math = Math::kReference});
  EXPECT_EQ(recipe.epochs(), 0);
  EXPECT_EQ(recipe.batch_size(), 7);
  EXPECT_EQ(recipe.eval_batch_size(), 1000);
  EXPECT_EQ(recipe.lr(), 0.5);
  EXPECT_EQ(recipe.head(), Head::kLogSoftmax);
  EXPECT_EQ(recipe.math(), Math::kReference);
  EXPECT_EQ(recipe.seed(), 1U);
  EXPECT_EQ(recipe.normalization().mean, 0.1307);
  EXPECT_EQ(Recipe({.normalize = false}).normalization().std, 1.0);
}

TEST(Recipe, PassesHeadMathAndWidthToTheNetwork) {
  for (const std::string name : {"basicnet", "convnet", "stack"}) {
    for (const std::string head : {"log-softmax", "logits"}) {
      const auto model =
          Recipe({.name = name, .head = head, .math = Math::kReference}).make_model();
      model->eval();
      const auto sums = model->forward(torch::rand({2, 1, 28, 28})).exp().sum(1);
      EXPECT_EQ(torch::allclose(sums, torch::ones({2})), head == "log-softmax") << name;
      EXPECT_TRUE(model->parameters()[0].is_contiguous()) << "NCHW in reference math";
    }
    std::int64_t count = 0;
    const auto wide = Recipe({.name = name, .width = 2}).make_model();
    for (const auto& one : wide->parameters()) count += one.numel();
    EXPECT_EQ(count, name == "basicnet"  ? 640 + 73856 + 4718848 + 2570
                     : name == "convnet" ? 832 + 64 + 51264 + 128 + 31370
                                         : 401920 + 8 * 2099712 + 5130);
  }
}

TEST(Recipe, AllowsTf32InProductsIfItIsWanted) {
  auto& context = at::globalContext();
  const Recipe plain({});
  EXPECT_FALSE(context.allowTF32CuBLAS());
  const Recipe faster({.tf32 = true});
  EXPECT_TRUE(context.allowTF32CuBLAS());
  context.setAllowTF32CuBLAS(false);
}

TEST(Recipe, MakesTheOptimizerOfTheRecipe) {
  const std::vector<torch::Tensor> parameters = {torch::zeros({1}, torch::requires_grad())};
  const auto adamw = Recipe({.lr = 0.25}).make_optimizer(parameters);
  ASSERT_NE(dynamic_cast<AdamW*>(adamw.get()), nullptr);
  const auto& options = options_of<AdamWOptions>(adamw->param_groups()[0]);
  EXPECT_EQ(options.lr, 0.25);
  EXPECT_EQ(options.weight_decay, 0.01);
  EXPECT_EQ(options.eps, 1e-8);
  const auto sgd = Recipe({.name = "convnet"}).make_optimizer(parameters);
  ASSERT_NE(dynamic_cast<SGD*>(sgd.get()), nullptr);
  EXPECT_EQ(options_of<SgdOptions>(sgd->param_groups()[0]).lr, 1e-4);
  EXPECT_EQ(options_of<SgdOptions>(sgd->param_groups()[0]).momentum, 0.0);
}

TEST(Recipe, RefusesWhatItsTableExcludes) {
  EXPECT_ERROR(Recipe({.name = "basicnett"}), UsageError,
               "recipe: expected one of basicnet, convnet, stack, got 'basicnett'");
  EXPECT_ERROR(Recipe({.scheduler = "steps"}), UsageError, "did you mean step?");
  EXPECT_ERROR(Recipe({.lr = std::nan("")}), UsageError, "lr: expected a number >= 0, got 'nan'");
}

double lr_of(const torch::optim::Optimizer& optimizer) {
  return optimizer.param_groups().front().options().get_lr();
}

TEST(Recipe, ScalesTheLearningRateWithTheRanksWhenAsked) {
  EXPECT_EQ(Recipe({}, 4).lr(), 1e-3);
  EXPECT_EQ(Recipe({.scale_lr = LrScaling::kLinear}, 4).lr(), 4e-3);
  EXPECT_EQ(Recipe({.scale_lr = LrScaling::kSqrt}, 4).lr(), 2e-3);
  EXPECT_EQ(Recipe({.lr = 0.5, .scale_lr = LrScaling::kLinear}, 1).lr(), 0.5);
  const Recipe doubled({.scale_lr = LrScaling::kLinear}, 2);
  EXPECT_EQ(lr_of(*doubled.make_optimizer(doubled.make_model()->parameters())), 2e-3);
}

TEST(Recipe, HasAScheduleThatStaysOrDropsEveryThirtyEpochs) {
  for (const bool drops : {false, true}) {
    const Recipe recipe({.scheduler = drops ? "step" : "none"});
    auto optimizer = recipe.make_optimizer(recipe.make_model()->parameters());
    auto scheduler = recipe.make_scheduler(*optimizer);
    for (int epoch = 0; epoch < 29; ++epoch) scheduler->step();
    EXPECT_EQ(lr_of(*optimizer), 1e-3);
    scheduler->step();
    EXPECT_DOUBLE_EQ(lr_of(*optimizer), drops ? 1e-4 : 1e-3);
  }
}

}  // namespace
}  // namespace mnist
