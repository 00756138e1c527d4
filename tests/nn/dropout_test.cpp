// SPDX-License-Identifier: Apache-2.0
#include "ladder/nn/dropout.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/nn/random_scope.h"
#include "tests/support/expect_error.h"
#include "tests/support/slopes.h"

namespace ladder {
namespace {

using Shape = std::vector<std::int64_t>;

constexpr auto kChannelsLast = torch::MemoryFormat::ChannelsLast;

torch::Tensor positions(std::int64_t begin, std::int64_t count) {
  return torch::arange(begin, begin + count, torch::kInt64);
}

RandomKey key_from(std::int64_t begin, std::int64_t count) {
  return {.seed = 42, .epoch = 3, .positions = positions(begin, count)};
}

torch::Tensor mask_of(const Shape& shape, const DropoutOptions& options = {.layer = 2}) {
  return counter_mask(torch::empty(shape), key_from(5, shape[0]), options);
}

void expect_both_ways_equal(const torch::Tensor& input) {
  for (const double p : {0.25, 0.5, 0.999}) {
    const DropoutOptions options{.p = p, .layer = 1};
    const RandomKey key{0xFEDCBA9876543210, 7, positions(4294967290, input.size(0))};
    const auto mask = counter_mask(input, key, options);
    const auto by_tensors = counter_mask_by_tensors(input, key, options);
    EXPECT_TRUE(torch::equal(mask, by_tensors));
    EXPECT_EQ(mask.strides(), by_tensors.strides());
    EXPECT_EQ(mask.scalar_type(), torch::kFloat32);
  }
}

TEST(CounterMask, IsTheSameInOnePassAndByTensorOperations) {
  const std::vector<Shape> shapes = {{2, 64, 12, 12}, {3, 5, 7, 9}, {4, 128},  {2, 13},
                                     {1, 1, 1, 1},    {7},          {2, 3, 5}, {0, 64, 12, 12},
                                     {0, 128},        {0},          {3, 0},    {2, 1, 3, 3}};
  for (const Shape& shape : shapes) {
    const auto input = torch::empty(shape);
    SCOPED_TRACE(testing::PrintToString(shape));
    expect_both_ways_equal(input);
    if (shape.size() == 4) expect_both_ways_equal(input.contiguous(kChannelsLast));
  }
}

TEST(CounterMask, IsTheSameForLayoutsOtherThanTheUsual) {
  expect_both_ways_equal(torch::empty({6, 4}).t());
  expect_both_ways_equal(torch::empty({2, 3, 4, 5}).permute({0, 2, 3, 1}));
  expect_both_ways_equal(
      torch::empty({2, 3, 4, 5, 6}).contiguous(torch::MemoryFormat::ChannelsLast3d));
}

TEST(CounterMask, IsTheSameOnAGpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no GPU";
  for (const Shape& shape : {Shape{2, 64, 12, 12}, Shape{3, 13}}) {
    const auto on_gpu =
        counter_mask(torch::empty(shape, torch::kCUDA), key_from(5, shape[0]), {.layer = 2});
    EXPECT_TRUE(torch::equal(on_gpu.cpu(), mask_of(shape)));
  }
}

// The numbers of a Philox written in Python. Pinned: another mask would make a resumed run
// differ from the one before it.
TEST(CounterMask, DropsTheElementsThatPhiloxSays) {
  const auto mask = mask_of({1, 16}, {.p = 0.5, .layer = 2});
  EXPECT_TRUE(torch::equal(
      mask[0], torch::tensor({0., 2., 2., 2., 2., 2., 0., 2., 2., 2., 2., 2., 2., 0., 0., 0.},
                             torch::kFloat32)));
}

TEST(CounterMask, OfASampleDoesNotDependOnItsBatch) {
  for (const Shape& rest : {Shape{64, 12, 12}, Shape{13}}) {
    const auto part = [&](std::int64_t begin, std::int64_t count) {
      Shape shape = rest;
      shape.insert(shape.begin(), count);
      return counter_mask(torch::empty(shape), key_from(begin, count), {.layer = 1});
    };
    const auto whole = part(100, 8);
    EXPECT_TRUE(
        torch::equal(torch::cat({part(100, 3), part(103, 0), part(103, 4), part(107, 1)}), whole));
  }
}

TEST(CounterMask, FollowsThePositionsAndNotThePlaceInTheBatch) {
  const auto mask = counter_mask(torch::empty({3, 50}), {42, 3, torch::tensor({9, 4, 9})}, {});
  EXPECT_TRUE(torch::equal(mask[0], mask[2]));
  EXPECT_FALSE(torch::equal(mask[0], mask[1]));
  const auto swapped = counter_mask(torch::empty({2, 50}), {42, 3, torch::tensor({4, 9})}, {});
  EXPECT_TRUE(torch::equal(swapped.flip(0), mask.narrow(0, 0, 2)));
}

TEST(CounterMask, IsTheSameLogicalMaskInEveryLayout) {
  const auto input = torch::empty({2, 5, 7, 9});
  const auto mask = counter_mask(input, key_from(0, 2), {});
  const auto channels_last = counter_mask(input.contiguous(kChannelsLast), key_from(0, 2), {});
  EXPECT_TRUE(torch::equal(mask, channels_last));
  EXPECT_TRUE(mask.is_contiguous());
  EXPECT_TRUE(channels_last.is_contiguous(kChannelsLast));
}

TEST(CounterMask, ChangesWithSeedEpochPositionAndLayer) {
  const auto input = torch::empty({1, 200});
  const auto mask = counter_mask(input, {42, 3, positions(5, 1)}, {.layer = 1});
  EXPECT_FALSE(torch::equal(mask, counter_mask(input, {43, 3, positions(5, 1)}, {.layer = 1})));
  EXPECT_FALSE(torch::equal(mask, counter_mask(input, {42, 4, positions(5, 1)}, {.layer = 1})));
  EXPECT_FALSE(torch::equal(mask, counter_mask(input, {42, 3, positions(6, 1)}, {.layer = 1})));
  EXPECT_FALSE(torch::equal(mask, counter_mask(input, {42, 3, positions(5, 1)}, {.layer = 2})));
}

TEST(CounterMask, DropsTheFractionAskedForAndScalesTheRest) {
  for (const double p : {0.1, 0.25, 0.5, 0.9}) {
    const auto mask = mask_of({64, 9216}, {.p = p});
    const auto count = static_cast<double>(mask.numel());
    const auto dropped = mask.eq(0).sum().item<double>();
    EXPECT_NEAR(dropped / count, p, 5.0 * std::sqrt(p * (1.0 - p) / count));  // standard errors
    const auto kept = static_cast<float>(1.0 / (1.0 - p));
    EXPECT_TRUE(mask.eq(0).logical_or(mask.eq(kept)).all().item<bool>());
  }
}

TEST(CounterMask, KeepsNextToNothingWhenPIsNearlyOne) {
  const double p = 1.0 - 1e-12;  // rounds to 2^32 of 2^32 random words
  EXPECT_EQ(mask_of({8, 1000}, {.p = p}).count_nonzero().item<std::int64_t>(), 0);
}

TEST(CounterMask, IsTheSameForEveryNumberOfThreads) {
  at::set_num_threads(1);
  const auto one = mask_of({33, 64, 12, 12});
  at::set_num_threads(2);
  const auto two = mask_of({33, 64, 12, 12});
  at::set_num_threads(1);
  EXPECT_TRUE(torch::equal(one, two));
}

TEST(CounterMask, WantsOnePositionASample) {
  EXPECT_ERROR(counter_mask(torch::empty({4, 3}), key_from(0, 3), {}), c10::Error,
               "dropout: expected one position a sample, got [3] positions for an input of [4, 3]");
  EXPECT_ERROR(counter_mask_by_tensors(torch::empty({1, 3}), key_from(0, 3), {}), c10::Error,
               "dropout: expected one position a sample");
}

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
  for (const Math math : {Math::kFast, Math::kReference}) {
    Dropout dropout({.p = 0.5, .math = math});
    dropout.eval();
    const auto input = torch::randn({2, 3});
    EXPECT_TRUE(dropout.forward(input).is_same(input));
  }
}

TEST(Dropout, OfPZeroIsTheIdentity) {
  const auto input = torch::randn({2, 3});
  EXPECT_TRUE(torch::equal(Dropout({.p = 0.0}).forward(input), input));
  EXPECT_TRUE(torch::equal(Dropout({.p = 0.0, .math = Math::kReference}).forward(input), input));
}

TEST(Dropout, DrawsPyTorchsMasksInReferenceMath) {
  const Dropout dropout({.p = 0.5, .math = Math::kReference});
  const auto input = torch::randn({4, 100});
  torch::manual_seed(7);
  const auto output = dropout.forward(input);  // needs no RandomScope
  torch::manual_seed(7);
  EXPECT_TRUE(torch::equal(output, torch::dropout(input, 0.5, /*train=*/true)));
}

TEST(Dropout, LeavesPyTorchsGeneratorAloneInFastMath) {
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

TEST(DropoutFlatten, DrawsPyTorchsMasksInReferenceMath) {
  const auto images = torch::randn({2, 3, 4, 5});
  torch::manual_seed(7);
  const auto output = Dropout({.p = 0.5, .math = Math::kReference}).forward_flatten(images);
  torch::manual_seed(7);
  EXPECT_TRUE(torch::equal(output, torch::flatten(torch::dropout(images, 0.5, true), 1)));
}

TEST(DropoutFlatten, WantsAScopeAndOnePositionASample) {
  const auto images = torch::ones({2, 3, 4, 5}).contiguous(kChannelsLast);
  EXPECT_ERROR(one_flatten(images), UsageError, "expected a RandomScope around the forward");
  const RandomScope random(key_from(0, 3));
  EXPECT_ERROR(one_flatten(images), c10::Error,
               "dropout: expected one position a sample, got [3] positions for an input of");
}

TEST(RandomScope, IsNeededWhileTraining) {
  EXPECT_ERROR(Dropout({.p = 0.5}).forward(torch::ones({2, 3})), UsageError,
               "dropout in training mode: expected a RandomScope around the forward, got nothing; "
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
