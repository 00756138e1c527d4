// SPDX-License-Identifier: Apache-2.0
#include "ladder/nn/dropout.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <thread>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/nn/random_scope.h"
#include "tests/support/expect_error.h"
#include "tests/support/random_keys.h"

namespace ladder {
namespace {

using Shape = std::vector<std::int64_t>;

constexpr auto kChannelsLast = torch::MemoryFormat::ChannelsLast;

TEST(Dropout, MultipliesByTheMaskAndKeepsTheLayout) {
  const Dropout dropout({.p = 0.25, .layer = 1});
  const auto input = torch::randn({2, 5, 7, 9}).contiguous(kChannelsLast).requires_grad_();
  const RandomScope random(key_from(0, 2));
  const auto output = dropout.forward(input);
  const auto mask = counter_mask_by_tensors(input, key_from(0, 2), {.p = 0.25, .layer = 1});
  EXPECT_TRUE(torch::equal(output, input * mask));
  EXPECT_TRUE(output.is_contiguous(kChannelsLast));
  output.sum().backward();
  EXPECT_TRUE(torch::equal(input.grad(), mask));
}

TEST(Dropout, KeepsTheDtype) {
  const Dropout dropout({.p = 0.5});
  const RandomScope random(key_from(0, 2));
  for (const auto dtype : {torch::kFloat64, torch::kBFloat16, torch::kFloat16}) {
    EXPECT_EQ(dropout.forward(torch::ones({2, 3}, dtype)).scalar_type(), dtype);
  }
}

TEST(Dropout, IsTheIdentityOrOnlyFlattensInEvaluationModeAndWithPZero) {
  const auto images = torch::randn({2, 3, 4, 5}).contiguous(kChannelsLast);
  for (const auto masks : {DropoutMasks::kByPosition, DropoutMasks::kByGenerator}) {
    Dropout evaluating({.p = 0.5, .masks = masks});
    evaluating.eval();
    for (const auto& dropout : {evaluating, Dropout({.p = 0.0, .masks = masks})}) {
      EXPECT_TRUE(dropout.forward(images).is_same(images));
      EXPECT_TRUE(torch::equal(dropout.forward_flatten(images), torch::flatten(images, 1)));
    }
  }
}

TEST(Dropout, DrawsPyTorchsMasksByGeneratorAndLeavesItAloneByPosition) {
  const Dropout dropout({.p = 0.5, .masks = DropoutMasks::kByGenerator});
  const auto images = torch::randn({2, 3, 4, 5});
  const auto after_seed = [](const auto& draw) {
    torch::manual_seed(7);
    return draw();
  };
  const auto expected = after_seed([&] { return torch::dropout(images, 0.5, /*train=*/true); });
  // Without a RandomScope.
  EXPECT_TRUE(torch::equal(after_seed([&] { return dropout.forward(images); }), expected));
  EXPECT_TRUE(torch::equal(after_seed([&] { return dropout.forward_flatten(images); }),
                           torch::flatten(expected, 1)));
  const RandomScope random(key_from(0, 2));
  const auto first = after_seed([] { return torch::rand({3}); });
  EXPECT_TRUE(torch::equal(after_seed([&] {
                             Dropout({.p = 0.5}).forward(images);
                             return torch::rand({3});
                           }),
                           first));
}

TEST(Dropout, RefusesAPOutsideItsRange) {
  for (const double p : {-0.1, 1.0, 1.5, std::nan("")}) {
    EXPECT_ERROR(Dropout({.p = p}), UsageError, "Dropout p: expected 0 <= p < 1, got ");
  }
}

// What forward_flatten stands for.
torch::Tensor plain_flatten(const torch::Tensor& images) {
  return torch::flatten(Dropout({.p = 0.25, .layer = 1}).forward(images), 1);
}

struct Passes {
  torch::Tensor output;
  torch::Tensor gradient;
};

template <typename Function>
Passes passes(const torch::Tensor& input, const Function& function) {
  const RandomScope random(key_from(5, input.size(0)));
  const auto leaf = input.detach().clone().requires_grad_();
  auto output = function(leaf);
  torch::manual_seed(4);
  output.backward(torch::randn(output.sizes()).to(output.scalar_type()));
  return {output.detach(), leaf.grad()};
}

torch::Tensor one_flatten(const torch::Tensor& images) {
  return Dropout({.p = 0.25, .layer = 1}).forward_flatten(images);
}

TEST(DropoutFlatten, EqualsTheTwoOperationsBitForBit) {
  for (const auto type : {torch::kFloat, torch::kBFloat16, torch::kDouble}) {
    for (const Shape& shape : {Shape{3, 64, 12, 12}, Shape{2, 5, 7, 9}, Shape{1, 1, 1, 1},
                               Shape{2, 3, 1, 40}, Shape{0, 8, 4, 4}}) {
      for (const auto format : {kChannelsLast, torch::MemoryFormat::Contiguous}) {
        SCOPED_TRACE(testing::PrintToString(shape) + c10::toString(type));
        const auto images = torch::randn(shape).to(type).contiguous(format);
        const Passes got = passes(images, one_flatten);
        const Passes wanted = passes(images, plain_flatten);
        EXPECT_TRUE(torch::equal(got.output, wanted.output));
        EXPECT_TRUE(torch::equal(got.gradient, wanted.gradient));
        EXPECT_EQ(got.output.scalar_type(), type);
        EXPECT_EQ(got.gradient.strides(), images.strides());
      }
    }
  }
}

TEST(DropoutFlatten, TakesAGradientInAnotherLayout) {
  const auto images = torch::randn({4, 3, 5, 6}).contiguous(kChannelsLast);
  const auto transposed = [](const auto& function) {
    return [&function](const torch::Tensor& x) { return function(x).t(); };
  };
  EXPECT_TRUE(torch::equal(passes(images, transposed(one_flatten)).gradient,
                           passes(images, transposed(plain_flatten)).gradient));
}

TEST(DropoutFlatten, HasTheSameBitsOnAnyNumberOfThreads) {
  const auto images = torch::randn({33, 64, 12, 12}).contiguous(kChannelsLast);
  at::set_num_threads(1);
  const Passes one = passes(images, one_flatten);
  at::set_num_threads(2);
  const Passes two = passes(images, one_flatten);
  at::set_num_threads(1);
  EXPECT_TRUE(torch::equal(one.output, two.output));
  EXPECT_TRUE(torch::equal(one.gradient, two.gradient));
}

TEST(RandomScope, IsNeededWhileTrainingWithOnePositionASample) {
  const auto images = torch::ones({2, 3, 4, 5}).contiguous(kChannelsLast);
  EXPECT_ERROR(Dropout({.p = 0.5}).forward(images), UsageError,
               "dropout or noise in training: expected a RandomScope around the forward, not set; "
               "hint: write `const RandomScope random({seed, epoch, batch.positions});`");
  EXPECT_ERROR(one_flatten(images), UsageError, "expected a RandomScope around the forward");
  const RandomScope random(key_from(0, 3));
  EXPECT_ERROR(one_flatten(images), c10::Error,
               "dropout: expected one position per sample, got [3] positions for an input of");
}

// Two would have equal masks.
TEST(RandomScope, HasOneLayerWithoutANumber) {
  const auto x = torch::ones({4, 8});
  const Dropout first({.p = 0.5}), second({.p = 0.5}), numbered({.p = 0.5, .layer = 1});
  for (int step = 0; step < 2; ++step) {
    const RandomScope random(key_from(0, 4));
    const auto mask = first.forward(x);
    EXPECT_TRUE(torch::equal(first.forward(x), mask));
    EXPECT_FALSE(torch::equal(numbered.forward(x), mask));
    EXPECT_ERROR(second.forward(x), UsageError,
                 "Dropout: two layers with `layer` 0 in one RandomScope, whose masks are equal; "
                 "hint: number the layers of a network: Dropout({.p = 0.1, .layer = 1})");
    EXPECT_ERROR(second.forward_flatten(x), UsageError, "two layers with `layer` 0");
  }
}

TEST(RandomScope, TheInnermostOfItsThreadCountsAndTheOuterComesBack) {
  const auto scope = [](std::uint64_t seed) {
    return RandomScope({.seed = seed, .positions = positions(0, 1)});
  };
  EXPECT_ERROR(RandomScope::current(), UsageError, "RandomScope");
  {
    const auto outer = scope(1);
    {
      const auto inner = scope(2);
      EXPECT_EQ(RandomScope::current().seed, 2U);
    }
    EXPECT_EQ(RandomScope::current().seed, 1U);
    std::uint64_t seed_there = 0;
    std::thread([&] {
      EXPECT_ERROR(RandomScope::current(), UsageError, "RandomScope");
      const auto there = scope(2);
      seed_there = RandomScope::current().seed;
    }).join();
    EXPECT_EQ(seed_there, 2U);
    EXPECT_EQ(RandomScope::current().seed, 1U);
  }
  EXPECT_ERROR(RandomScope::current(), UsageError, "RandomScope");
}

}  // namespace
}  // namespace ladder
