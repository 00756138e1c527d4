// SPDX-License-Identifier: Apache-2.0
#include "ladder/kernels/dropout_mask.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/library.h>
#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/random_keys.h"

namespace ladder {
namespace {

using Shape = std::vector<std::int64_t>;

constexpr auto kChannelsLast = torch::MemoryFormat::ChannelsLast;

torch::Tensor mask_of(const Shape& shape, const DropoutMaskOptions& options = {.layer = 2}) {
  return counter_mask(torch::empty(shape), key_from(5, shape[0]), options);
}

void expect_both_ways_equal(const torch::Tensor& input) {
  for (const double p : {0.25, 0.5, 0.999}) {
    const DropoutMaskOptions options{.p = p, .layer = 1};
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
  const auto expect_equal = [](const torch::Tensor& input, const torch::Tensor& positions) {
    const RandomKey key{42, 3, positions};
    const auto on_gpu = counter_mask(input.to(torch::kCUDA), key, {.layer = 2});
    const auto mask = counter_mask(input, key, {.layer = 2});
    EXPECT_TRUE(on_gpu.is_cuda());
    EXPECT_TRUE(torch::equal(on_gpu.cpu(), mask));
    EXPECT_EQ(on_gpu.strides(), mask.strides());
  };
  const std::vector<std::int64_t> repeated = {9, 4, 4294967290, 9};
  for (const auto& positions : {torch::arange(5, 9), torch::tensor(repeated, torch::kInt64)}) {
    expect_equal(torch::empty({4, 13}), positions);
    expect_equal(torch::empty({4, 64, 12, 12}), positions);
    expect_equal(torch::empty({4, 64, 12, 12}).contiguous(kChannelsLast), positions);
  }
  expect_equal(torch::empty({0, 13}), torch::arange(0));
  expect_equal(torch::empty({70000, 3}), torch::arange(70000));
}

torch::Tensor wrong_mask(const torch::Tensor& input, at::IntArrayRef /*positions*/,
                         std::int64_t /*seed*/, std::int64_t /*epoch*/, std::int64_t /*layer*/,
                         double /*p*/) {
  return empty_mask(input).fill_(2.0);
}

// On the second GPU: the first one has its verdict.
TEST(CounterMask, UsesTensorOperationsOnAGpuWhoseKernelDiffers) {
  if (torch::cuda::device_count() < 2) GTEST_SKIP() << "skipped: no second GPU";
  torch::Library library(torch::Library::IMPL, "ladder", c10::DispatchKey::CUDA, __FILE__,
                         __LINE__);
  library.impl("counter_mask", TORCH_FN(wrong_mask));
  const torch::Device gpu(torch::kCUDA, 1);
  testing::internal::CaptureStderr();
  for (int time = 0; time < 2; ++time) {
    const auto mask = counter_mask(torch::empty({3, 13}, gpu), key_from(5, 3), {.layer = 2});
    EXPECT_TRUE(torch::equal(mask.cpu(), mask_of({3, 13})));
  }
  EXPECT_EQ(
      testing::internal::GetCapturedStderr(),
      "warning: dropout on cuda:1 uses tensor operations, which are slower, and not the kernel "
      "for masks: its bits differ from those of tensor operations\n");
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
  EXPECT_ERROR(
      counter_mask(torch::empty({4, 3}), key_from(0, 3), {}), c10::Error,
      "dropout: expected one position per sample, got [3] positions for an input of [4, 3]");
  EXPECT_ERROR(counter_mask_by_tensors(torch::empty({1, 3}), key_from(0, 3), {}), c10::Error,
               "dropout: expected one position per sample");
}

}  // namespace
}  // namespace ladder
