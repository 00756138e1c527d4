// SPDX-License-Identifier: Apache-2.0
#include "ladder/nn/dropout.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/nn/random_scope.h"
#include "tests/support/expect_error.h"
#include "tests/support/random_keys.h"
#include "tests/support/slopes.h"

namespace ladder {
namespace {

using Shape = std::vector<std::int64_t>;

constexpr auto kChannelsLast = torch::MemoryFormat::ChannelsLast;

TEST(Dropout, MultipliesByTheMaskAndKeepsTheLayout) {
  const Dropout dropout({.p = 0.25, .layer = 1});
  const auto input = torch::randn({2, 5, 7, 9}).contiguous(kChannelsLast);
  const RandomScope random(key_from(0, 2));
  const auto output = dropout.forward(input);
  const auto mask = counter_mask(input, key_from(0, 2), {.p = 0.25, .layer = 1});
  EXPECT_TRUE(torch::equal(output, input * mask));
  EXPECT_TRUE(output.is_contiguous(kChannelsLast));
}

TEST(Dropout, GivesTheGradientOfTheMask) {
  const Dropout dropout({.p = 0.25, .layer = 1});
  const auto input = torch::randn({3, 17}).requires_grad_();
  const RandomScope random(key_from(0, 3));
  dropout.forward(input).sum().backward();
  EXPECT_TRUE(
      torch::equal(input.grad(), counter_mask(input, key_from(0, 3), {.p = 0.25, .layer = 1})));
}

TEST(Dropout, KeepsTheDtype) {
  const Dropout dropout({.p = 0.5});
  const RandomScope random(key_from(0, 2));
  for (const auto dtype : {torch::kFloat64, torch::kBFloat16, torch::kFloat16}) {
    EXPECT_EQ(dropout.forward(torch::ones({2, 3}, dtype)).scalar_type(), dtype);
  }
}

TEST(Dropout, IsTheIdentityInEvaluationMode) {
  for (const auto masks : {DropoutMasks::kByPosition, DropoutMasks::kByGenerator}) {
    Dropout dropout({.p = 0.5, .masks = masks});
    dropout.eval();
    const auto input = torch::randn({2, 3});
    EXPECT_TRUE(dropout.forward(input).is_same(input));
  }
}

TEST(Dropout, OfPZeroIsTheIdentity) {
  const auto input = torch::randn({2, 3});
  EXPECT_TRUE(torch::equal(Dropout({.p = 0.0}).forward(input), input));
  EXPECT_TRUE(
      torch::equal(Dropout({.p = 0.0, .masks = DropoutMasks::kByGenerator}).forward(input), input));
}

TEST(Dropout, DrawsPyTorchsMasksByGenerator) {
  const Dropout dropout({.p = 0.5, .masks = DropoutMasks::kByGenerator});
  const auto input = torch::randn({4, 100});
  torch::manual_seed(7);
  const auto output = dropout.forward(input);  // needs no RandomScope
  torch::manual_seed(7);
  EXPECT_TRUE(torch::equal(output, torch::dropout(input, 0.5, /*train=*/true)));
}

TEST(Dropout, LeavesPyTorchsGeneratorAloneByPosition) {
  const RandomScope random(key_from(0, 2));
  torch::manual_seed(7);
  const auto first = torch::rand({3});
  torch::manual_seed(7);
  Dropout({.p = 0.5}).forward(torch::ones({2, 3}));
  EXPECT_TRUE(torch::equal(torch::rand({3}), first));
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

TEST(DropoutFlatten, RefusesToDifferentiateItsGradient) {
  const auto images = torch::randn({4, 3, 5, 6}).contiguous(kChannelsLast).requires_grad_();
  const RandomScope random(key_from(0, 4));
  const auto output = one_flatten(images).sum();
  EXPECT_ERROR(torch::autograd::grad({output}, {images}, {}, /*retain_graph=*/true,
                                     /*create_graph=*/true),
               UsageError, "dropout_flatten: its gradient is not differentiable (create_graph)");
}

TEST(DropoutFlatten, GradientsAreTheSlopesOfTheLoss) {
  const auto images = torch::randn({4, 3, 5, 6}).contiguous(kChannelsLast);
  const auto direction = torch::randn({4, 90});
  const RandomScope random(key_from(0, 4));
  expect_gradients_are_slopes({images}, [&](const auto& at) {
    return (one_flatten(at[0]).to(torch::kFloat64) * direction).sum();
  });
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

TEST(DropoutFlatten, OnlyFlattensWhereNothingIsDropped) {
  const auto images = torch::randn({2, 3, 4, 5}).contiguous(kChannelsLast);
  Dropout evaluating({.p = 0.5});
  evaluating.eval();
  EXPECT_TRUE(torch::equal(evaluating.forward_flatten(images), torch::flatten(images, 1)));
  EXPECT_TRUE(torch::equal(Dropout({.p = 0.0}).forward_flatten(images), torch::flatten(images, 1)));
}

TEST(DropoutFlatten, DrawsPyTorchsMasksByGenerator) {
  const auto images = torch::randn({2, 3, 4, 5});
  torch::manual_seed(7);
  const auto output =
      Dropout({.p = 0.5, .masks = DropoutMasks::kByGenerator}).forward_flatten(images);
  torch::manual_seed(7);
  EXPECT_TRUE(torch::equal(output, torch::flatten(torch::dropout(images, 0.5, true), 1)));
}

TEST(DropoutFlatten, WantsAScopeAndOnePositionASample) {
  const auto images = torch::ones({2, 3, 4, 5}).contiguous(kChannelsLast);
  EXPECT_ERROR(one_flatten(images), UsageError, "expected a RandomScope around the forward");
  const RandomScope random(key_from(0, 3));
  EXPECT_ERROR(one_flatten(images), c10::Error,
               "dropout: expected one position per sample, got [3] positions for an input of");
}

TEST(RandomScope, IsNeededWhileTraining) {
  EXPECT_ERROR(Dropout({.p = 0.5}).forward(torch::ones({2, 3})), UsageError,
               "dropout or noise in training: expected a RandomScope around the forward, not set; "
               "hint: write `const RandomScope random({seed, epoch, batch.positions});`");
}

TEST(RandomScope, TheInnermostCountsAndTheOuterComesBack) {
  EXPECT_ERROR(RandomScope::current(), UsageError, "RandomScope");
  {
    const RandomScope outer({.seed = 1, .positions = positions(0, 1)});
    {
      const RandomScope inner({.seed = 2, .positions = positions(0, 1)});
      EXPECT_EQ(RandomScope::current().seed, 2U);
    }
    EXPECT_EQ(RandomScope::current().seed, 1U);
  }
  EXPECT_ERROR(RandomScope::current(), UsageError, "RandomScope");
}

TEST(RandomScope, BelongsToItsThread) {
  const RandomScope here({.seed = 1, .positions = positions(0, 1)});
  std::uint64_t seed_there = 0;
  std::thread([&] {
    EXPECT_ERROR(RandomScope::current(), UsageError, "RandomScope");
    const RandomScope there({.seed = 2, .positions = positions(0, 1)});
    seed_there = RandomScope::current().seed;
  }).join();
  EXPECT_EQ(seed_there, 2U);
  EXPECT_EQ(RandomScope::current().seed, 1U);
}

}  // namespace
}  // namespace ladder
