// SPDX-License-Identifier: Apache-2.0
// The loss as a mean over the batch of all ranks.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "ladder/data/batch.h"
#include "tests/support/threads.h"

namespace ladder {
namespace {

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
