// SPDX-License-Identifier: Apache-2.0
#include "ladder/data/batch.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/data/inputs.h"
#include "tests/support/expect_error.h"
#include "tests/support/threads.h"

namespace ladder {
namespace {

std::vector<std::string> names_of(const Inputs& inputs) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : inputs) names.push_back(name);
  return names;
}

// A function that takes Inputs, as a network's forward does.
std::size_t count(const Inputs& inputs) { return inputs.size(); }

TEST(Inputs, AreMadeFromATensorOrFromNamedTensorsWhoseOrderTheyKeep) {
  const auto a = torch::zeros({3});
  const auto b = torch::ones({3});
  EXPECT_EQ(count(a), 1U);
  EXPECT_EQ(count({}), 0U);
  EXPECT_EQ(names_of(a), (std::vector<std::string>{"x"}));
  EXPECT_TRUE(Inputs(a).only().is_same(a));
  Inputs inputs = {{"b", b}, {"a", a}};
  EXPECT_EQ(names_of(inputs), (std::vector<std::string>{"b", "a"}));
  EXPECT_TRUE(inputs.at("a").is_same(a));
  EXPECT_TRUE(inputs.contains("b"));
  EXPECT_FALSE(inputs.contains("c"));
  inputs.set("b", a);
  inputs.set("c", b);
  EXPECT_EQ(names_of(inputs), (std::vector<std::string>{"b", "a", "c"}));
  EXPECT_TRUE(inputs.at("b").is_same(a));
}

TEST(Inputs, RefuseWhatIsNotThereAndOtherNumbersOfRows) {
  const auto tensor = torch::zeros({3});
  const Inputs two = {{"image", tensor}, {"text", tensor}};
  EXPECT_ERROR(two.at("imag"), UsageError, "Inputs: expected one of image, text, got 'imag'");
  EXPECT_ERROR(two.only(), UsageError, "Inputs::only: expected one tensor, got '2 tensors'");
  EXPECT_ERROR(Inputs().only(), UsageError, "got '0 tensors'");
  EXPECT_ERROR(Inputs().rows(), UsageError, "Inputs: expected at least one tensor");
  EXPECT_ERROR(Inputs().device(), UsageError, "Inputs: expected at least one tensor");
  EXPECT_ERROR((Inputs{{"a", tensor}, {"a", tensor}}), UsageError, "the name a occurs twice");
  EXPECT_ERROR((Inputs{{"", tensor}}), UsageError, "Inputs: expected a name for each tensor");
  EXPECT_EQ(Inputs({{"a", tensor}, {"b", torch::zeros({3, 4})}}).rows(), 3);
  const Inputs other = {{"a", tensor}, {"b", torch::zeros({2, 4})}};
  const std::string rows = "input b: expected 3 rows, as a has, got '2 rows'";
  EXPECT_ERROR(other.rows(), UsageError, rows);
  EXPECT_ERROR(other.chunk(2), UsageError, rows);
  EXPECT_ERROR(other.split(2), UsageError, rows);
  EXPECT_ERROR(Inputs(torch::zeros({})).rows(), UsageError,
               "input x: expected one row per sample, got 'a scalar'");
}

TEST(Inputs, MapAndChunkKeepNames) {
  const Inputs inputs = {{"a", torch::arange(5)}, {"b", torch::arange(10).view({5, 2})}};
  const auto doubled = inputs.map([](const torch::Tensor& tensor) { return tensor * 2; });
  EXPECT_EQ(names_of(doubled), names_of(inputs));
  EXPECT_TRUE(torch::equal(doubled.at("a"), torch::arange(5) * 2));
  const auto parts = inputs.chunk(2);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].rows(), 3);
  EXPECT_EQ(parts[1].rows(), 2);
  EXPECT_TRUE(torch::equal(parts[1].at("b"), torch::arange(6, 10).view({2, 2})));
  EXPECT_EQ(Inputs(torch::zeros({1, 2})).chunk(4).size(), 1U) << "as torch::Tensor::chunk";
}

TEST(Inputs, SplitInPiecesOfOneSizeAndAShorterLast) {
  const Inputs inputs = {{"a", torch::arange(5)}, {"b", torch::arange(10).view({5, 2})}};
  const auto parts = inputs.split(2);
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[0].rows(), 2);
  EXPECT_EQ(parts[2].rows(), 1);
  EXPECT_EQ(names_of(parts[2]), names_of(inputs));
  EXPECT_TRUE(torch::equal(parts[1].at("b"), torch::arange(4, 8).view({2, 2})));
  EXPECT_EQ(inputs.split(5).size(), 1U);
  EXPECT_EQ(inputs.split(64).size(), 1U);
  EXPECT_TRUE(Inputs(torch::zeros({0, 2})).split(2).empty());
}

TEST(Batch, MovesEveryTensorAndNeedsNoTargets) {
  const Batch batch = {.inputs = {{"a", torch::zeros({2})}, {"b", torch::zeros({2})}}};
  EXPECT_EQ(batch.size(), 2);
  const auto moved = batch.to(torch::kCPU);
  EXPECT_TRUE(moved.inputs.at("b").is_same(batch.inputs.at("b")));
  EXPECT_FALSE(moved.targets.defined());
}

// --- The loss as a mean over the batch of all ranks ---

constexpr std::int64_t kMicroBatch = 16;

torch::Tensor cross_entropy_sum(const torch::Tensor& output, const torch::Tensor& targets) {
  return torch::cross_entropy_loss(output, targets, {}, at::Reduction::Sum);
}

struct Scores {
  torch::Tensor output;
  torch::Tensor targets;
};

Scores random_scores(std::int64_t size) {
  torch::manual_seed(3);
  return {torch::randn({size, 10}), torch::randint(10, {size}, torch::kInt64)};
}

// The loss of rows `begin` to `begin + count` of a batch in micro-batches, and its gradient.
std::pair<torch::Tensor, torch::Tensor> exact_mean(const Scores& scores, std::int64_t begin,
                                                   std::int64_t count) {
  const NumItems items{.global = scores.output.size(0), .micro_batch = kMicroBatch};
  const auto output = scores.output.narrow(0, begin, count).clone().requires_grad_();
  const auto loss = items.mean(cross_entropy_sum, output, scores.targets.narrow(0, begin, count));
  EXPECT_TRUE(loss.requires_grad());
  loss.backward();
  return {loss.detach(), output.grad()};
}

TEST(NumItems, InMicroBatchesHasTheGradientOfThePlainMeanToTheLastBit) {
  for (const std::int64_t size : {64, 63, 40, 11, 1}) {
    const auto scores = random_scores(size);
    const auto output = scores.output.clone().requires_grad_();
    const auto plain = NumItems{.global = size}.mean(cross_entropy_sum, output, scores.targets);
    plain.backward();
    const auto [loss, gradient] = exact_mean(scores, 0, size);
    EXPECT_TRUE(torch::equal(gradient, output.grad())) << size;
    EXPECT_EQ(loss.scalar_type(), torch::kDouble);
    EXPECT_NEAR(loss.item<double>(), plain.item<double>(), 1e-6);
  }
}

TEST(NumItems, WithoutMicroBatchesIsTheMeanOfTheSum) {
  const auto scores = random_scores(11);
  const NumItems items{.global = 22, .processes = 2};
  EXPECT_TRUE(torch::equal(items.mean(cross_entropy_sum, scores.output, scores.targets),
                           items.mean(cross_entropy_sum(scores.output, scores.targets))));
}

TEST(NumItems, InMicroBatchesGivesMultiplesOfAStepThatAddUpForAnyDivision) {
  const auto scores = random_scores(3 * kMicroBatch + 5);
  const auto size = scores.output.size(0);
  const double whole = exact_mean(scores, 0, size).first.item<double>();
  for (std::int64_t cut = 0; cut <= size; cut += kMicroBatch) {
    double sum = 0.0;
    for (const auto& [begin, count] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{cut, size - cut}, {0, cut}}) {
      const double share = exact_mean(scores, begin, count).first.item<double>();
      EXPECT_EQ(share * 0x1p32, std::round(share * 0x1p32));
      sum += share;
    }
    EXPECT_EQ(sum, whole) << "cut at " << cut;
  }
}

// Outputs so large that LibTorch adds the losses of one micro-batch in several threads.
TEST(NumItems, InMicroBatchesIsTheSameOnAnyNumberOfThreads) {
  const auto sum_of_squares = [](const torch::Tensor& output, const torch::Tensor& /*targets*/) {
    return output.square().sum();
  };
  const NumItems items{.global = 2 * kMicroBatch, .micro_batch = kMicroBatch};
  torch::manual_seed(3);
  for (int i = 0; i < 5; ++i) {
    const auto output = torch::randn({2 * kMicroBatch, 5000});
    const auto loss = [&](int threads) {
      const Threads these(threads);
      return items.mean(sum_of_squares, output, output).item<double>();
    };
    EXPECT_EQ(loss(2), loss(1));
  }
}

TEST(NumItems, OfAnEmptyPartIsZeroWithAGraph) {
  const auto [loss, gradient] = exact_mean(random_scores(20), 20, 0);
  EXPECT_EQ(loss.item<double>(), 0.0);
  EXPECT_EQ(gradient.size(0), 0);
}

// Rounding must not hide a bad loss from a LossGuard.
TEST(NumItems, InMicroBatchesOfABadLossIsNotFinite) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    auto scores = random_scores(40);
    scores.output[33][scores.targets[33].item<std::int64_t>()] = -bad;
    EXPECT_FALSE(std::isfinite(exact_mean(scores, 0, 40).first.item<double>()));
  }
}

TEST(Batch, InMicroBatchesCountsOneProcess) {
  const Batch plain = {.global_size = 12, .world_size = 3};
  EXPECT_EQ(plain.num_items().processes, 3);
  EXPECT_EQ(plain.num_items().micro_batch, 0);
  const Batch exact = {.global_size = 12, .world_size = 3, .micro_batch = 4};
  EXPECT_EQ(exact.num_items().global, 12);
  EXPECT_EQ(exact.num_items().processes, 1);
  EXPECT_EQ(exact.num_items().micro_batch, 4);
}

}  // namespace
}  // namespace ladder
