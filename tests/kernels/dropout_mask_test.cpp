// SPDX-License-Identifier: Apache-2.0
#include "ladder/kernels/dropout_mask.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/cuda.h>
#include <torch/library.h>
#include <torch/types.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/core/philox.h"
#include "ladder/kernels/dropout_flatten.h"
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

TEST(CounterMask, FollowsThePositionsAndNotThePlaceInTheBatch) {
  for (const Shape& rest : {Shape{64, 12, 12}, Shape{13}}) {
    const auto mask = [&](const torch::Tensor& positions) {
      Shape shape = rest;
      shape.insert(shape.begin(), positions.numel());
      return counter_mask(torch::empty(shape), {42, 3, positions}, {.layer = 1});
    };
    const auto part = [&](std::int64_t begin, std::int64_t count) {
      return mask(positions(begin, count));
    };
    EXPECT_TRUE(torch::equal(torch::cat({part(100, 3), part(103, 0), part(103, 5)}), part(100, 8)));
    const auto repeated = mask(torch::tensor({9, 4, 9}));
    EXPECT_TRUE(torch::equal(repeated[0], repeated[2]));
    EXPECT_FALSE(torch::equal(repeated[0], repeated[1]));
    EXPECT_TRUE(torch::equal(mask(torch::tensor({4, 9})).flip(0), repeated.narrow(0, 0, 2)));
  }
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

constexpr std::uint32_t kOnes = 0xFFFFFFFF;

// The vectors of Random123's kat_vectors, "philox4x32 10".
TEST(Philox, GivesTheKnownAnswers) {
  constexpr PhiloxCounter kOfZeros = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  static_assert(philox4x32({0, 0, 0, 0}, 0) == kOfZeros, "also when the compiler computes it");
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, 0), kOfZeros);
  const PhiloxCounter of_ones = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, 0xFFFFFFFFFFFFFFFF), of_ones);
  const PhiloxCounter pi = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344};
  const PhiloxCounter of_pi = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
  EXPECT_EQ(philox4x32(pi, 0x299f31d0a4093822), of_pi);
}

// Word `i` of a fill of `size` words, from the layout in the header.
std::uint32_t expected_word(const PhiloxStream& stream, std::size_t size, std::size_t i) {
  const std::size_t quarter = (size + 3) / 4;
  const auto block = static_cast<std::uint32_t>(i % quarter);
  return philox4x32({stream.word0, stream.word1, stream.word2, block}, stream.key)[i / quarter];
}

TEST(PhiloxFill, GivesTheFunctionsWordsForEverySize) {
  const PhiloxStream stream{0xFEDCBA9876543210, 7, kOnes, 2};
  constexpr std::size_t kSizes[] = {0, 1, 2, 3, 4, 5, 7, 255, 256, 257, 259, 512, 9216};
  for (const std::size_t size : kSizes) {
    constexpr std::uint32_t kUntouched = 0xDEADBEEF;
    std::vector<std::uint32_t> words(size + 1, kUntouched);
    philox_fill(stream, std::span(words).first(size));
    for (std::size_t i = 0; i < size; ++i) {
      ASSERT_EQ(words[i], expected_word(stream, size, i)) << "word " << i << " of " << size;
    }
    EXPECT_EQ(words[size], kUntouched) << "wrote behind the end of " << size;
  }
}

TEST(PhiloxFill, ChangesWithEachPartOfTheStream) {
  const auto filled = [](const PhiloxStream& stream) {
    std::vector<std::uint32_t> words(8);
    philox_fill(stream, words);
    return words;
  };
  const auto words = filled({1, 2, 3, 4});
  EXPECT_EQ(filled({1, 2, 3, 4}), words);
  EXPECT_NE(filled({std::uint64_t{1} << 32 | 1, 2, 3, 4}), words);
  EXPECT_NE(filled({1, 0, 3, 4}), words);
  EXPECT_NE(filled({1, 2, 0, 4}), words);
  EXPECT_NE(filled({1, 2, 3, 0}), words);
}

TEST(DropoutFlatten, RefusesToDifferentiateItsGradient) {
  const auto images =
      torch::randn({4, 3, 5, 6}).contiguous(torch::MemoryFormat::ChannelsLast).requires_grad_();
  const auto output = dropout_flatten(images, key_from(0, 4), {}).sum();
  EXPECT_ERROR(torch::autograd::grad({output}, {images}, {}, /*retain_graph=*/true,
                                     /*create_graph=*/true),
               UsageError, "dropout_flatten: its gradient is not differentiable (create_graph)");
}

}  // namespace
}  // namespace ladder
