// SPDX-License-Identifier: Apache-2.0
#include "ladder/monitor/evaluation.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "tests/support/expect_error.h"

namespace ladder {
namespace {

using Digits = std::vector<std::int64_t>;

// Images that show what the model will answer, and their labels.
class Sheet : public Dataset {
 public:
  Sheet(Digits shown, Digits labels) : shown_(std::move(shown)), labels_(std::move(labels)) {}

  std::int64_t size() const override { return std::ssize(labels_); }

  Batch get_batch(std::span<const std::int64_t> indices) const override {
    const auto chosen = torch::tensor(Digits(indices.begin(), indices.end()), torch::kInt64);
    const auto shown = torch::tensor(shown_, torch::kFloat32).index_select(0, chosen);
    return {.inputs = shown.view({-1, 1, 1, 1}).repeat({1, 1, 28, 28}),
            .targets = torch::tensor(labels_, torch::kInt64).index_select(0, chosen)};
  }

 private:
  Digits shown_;
  Digits labels_;
};

// Scores 1 for the digit that the image shows and 0 for the others.
class Reader : public Model {
 public:
  torch::Tensor forward(const Inputs& inputs) override {
    const auto& images = inputs.only();
    saw_gradient_mode = saw_gradient_mode || torch::GradMode::is_enabled();
    saw_training_mode = saw_training_mode || is_training();
    const auto shown = images.select(1, 0).select(1, 0).select(1, 0).to(torch::kInt64);
    return torch::one_hot(shown, 10).to(torch::kFloat32);
  }
  std::shared_ptr<Model> new_like() const override { return std::make_shared<Reader>(); }

  bool saw_gradient_mode = false;
  bool saw_training_mode = false;
};

torch::Tensor cross_entropy(const torch::Tensor& output, const torch::Tensor& targets) {
  return torch::cross_entropy_loss(output, targets, /*weight=*/{}, at::Reduction::Sum);
}

const Digits kShown = {0, 1, 2, 3, 4, 5, 6};
const Digits kLabels = {0, 1, 9, 3, 9, 5, 6};  // two are wrong

Evaluation evaluate_sheet(Reader& model, DataLoaderOptions options) {
  const DataLoader loader(std::make_shared<Sheet>(kShown, kLabels), std::move(options));
  return evaluate(model, loader, cross_entropy, torch::kCPU);
}

// Cross-entropy of a score of 1 for one class and 0 for nine others.
double right() { return std::log(std::exp(1.0) + 9.0) - 1.0; }
double wrong() { return std::log(std::exp(1.0) + 9.0); }

TEST(Evaluate, CountsEverySampleAlsoOfTheShortLastBatchAndListsWrongOnesInOrder) {
  for (const std::int64_t batch_size : {1, 3, 7, 100}) {
    Reader model;
    const Evaluation result = evaluate_sheet(model, {.batch_size = batch_size});
    EXPECT_EQ(result.seen, 7);
    EXPECT_EQ(result.correct, 5);
    EXPECT_NEAR(result.loss_sum, 5 * right() + 2 * wrong(), 1e-5);  // float32 sums
    EXPECT_DOUBLE_EQ(result.accuracy(), 500.0 / 7.0);
    EXPECT_DOUBLE_EQ(result.mean_loss(), result.loss_sum / 7.0);
    ASSERT_EQ(result.misclassified.size(), 2U);
    for (const std::size_t i : {0U, 1U}) {
      const std::int64_t expected = i == 0 ? 2 : 4;
      EXPECT_EQ(result.misclassified[i].index, expected);
      EXPECT_EQ(result.misclassified[i].prediction, expected);
    }
  }
}

TEST(Evaluate, DoesNotDependOnTheOrder) {
  Reader model;
  const auto in_order = evaluate_sheet(model, {.batch_size = 2});
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    const auto shuffled = evaluate_sheet(model, {.batch_size = 2, .shuffle = true, .seed = seed});
    EXPECT_EQ(shuffled.correct, in_order.correct);
    EXPECT_EQ(shuffled.seen, in_order.seen);
    EXPECT_NEAR(shuffled.loss_sum, in_order.loss_sum, 1e-6);  // other sums of two in float32
  }
}

TEST(Evaluate, RunsInEvaluationModeWithoutGradientsAndPutsBothBack) {
  for (const bool training : {true, false}) {
    Reader model;
    const auto frozen = model.register_module("frozen", torch::nn::Linear(1, 1));
    model.train(training);
    frozen->train(!training);
    evaluate_sheet(model, {});
    EXPECT_FALSE(model.saw_training_mode);
    EXPECT_FALSE(model.saw_gradient_mode);
    const DataLoader loader(std::make_shared<Sheet>(kShown, kLabels));
    const auto throwing = [](const torch::Tensor&, const torch::Tensor&) -> torch::Tensor {
      throw std::runtime_error("thrown");
    };
    EXPECT_THROW(evaluate(model, loader, throwing, torch::kCPU), std::runtime_error);
    EXPECT_EQ(model.is_training(), training);
    EXPECT_EQ(frozen->is_training(), !training);
    EXPECT_TRUE(torch::GradMode::is_enabled());
  }
}

TEST(Evaluate, OfNothingCountsNothing) {
  Reader model;
  const DataLoader loader(std::make_shared<Sheet>(Digits{}, Digits{}));
  const auto result = evaluate(model, loader, cross_entropy, torch::kCPU);
  EXPECT_EQ(result.seen, 0);
  EXPECT_EQ(result.correct, 0);
  EXPECT_EQ(result.loss_sum, 0.0);
}

TEST(RequireEachSampleOnce, RefusesMissingAndRepeatedSamples) {
  EXPECT_NO_THROW(require_each_sample_once({.seen = 10000}, 10000));
  EXPECT_ERROR(require_each_sample_once({.seen = 9999}, 10000), DistributedError,
               "evaluation: expected 10000 samples, each counted once, got 9999; "
               "hint: give each rank its own part of the test set, without padding");
  EXPECT_ERROR(require_each_sample_once({.seen = 10001}, 10000), DistributedError, "got 10001");
}

TEST(SumOverRanks, OfOneRankIsItself) {
  const std::int64_t many = (std::int64_t{1} << 53) + 1;  // a float64 would lose the last one
  const auto total = sum_over_ranks({many, many + 2, 0.25}, ProcessGroup::single());
  EXPECT_EQ(total.correct, many);
  EXPECT_EQ(total.seen, many + 2);
  EXPECT_EQ(total.loss_sum, 0.25);
}

}  // namespace
}  // namespace ladder
