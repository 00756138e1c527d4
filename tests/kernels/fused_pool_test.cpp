// SPDX-License-Identifier: Apache-2.0
// relu_max_pool2d and batch_norm_relu_max_pool2d against the operations that they equal.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "ladder/kernels/batch_norm_relu_max_pool.h"
#include "ladder/kernels/channels_last.h"
#include "ladder/kernels/pool_windows.h"
#include "ladder/kernels/relu_max_pool.h"
#include "tests/support/expect_error.h"
#include "tests/support/relative_difference.h"
#include "tests/support/slopes.h"

namespace ladder {
namespace {

using Sizes = std::vector<std::int64_t>;

torch::Tensor images(const Sizes& sizes, torch::ScalarType type = torch::kFloat) {
  torch::manual_seed(3);
  return to_channels_last(torch::randn(sizes)).to(type);
}

// What a function returns, and the gradient of its input for a random one of its output.
struct Passes {
  torch::Tensor output;
  torch::Tensor gradient;
};

template <typename Function>
Passes passes(const torch::Tensor& input, const Function& function) {
  const auto leaf = input.detach().clone().requires_grad_();
  auto output = function(leaf);
  torch::manual_seed(4);
  output.backward(torch::randn(output.sizes()).to(output.scalar_type()));
  return {output.detach(), leaf.grad()};
}

torch::Tensor bias_of(const torch::Tensor& input) {
  return torch::linspace(-0.3, 0.4, input.size(1));
}

torch::Tensor fused(const torch::Tensor& input) { return relu_max_pool2d(input, bias_of(input)); }

torch::Tensor plain(const torch::Tensor& input) {
  const auto sum = input + bias_of(input).view({-1, 1, 1});
  return torch::max_pool2d(torch::relu(sum), 2).to(input.scalar_type());
}

void expect_equal(const Passes& got, const Passes& wanted, const std::string& what) {
  EXPECT_TRUE(torch::equal(got.output.nan_to_num(9.0), wanted.output.nan_to_num(9.0))) << what;
  EXPECT_TRUE(torch::equal(got.gradient, wanted.gradient)) << what;
}

TEST(ReluMaxPool, EqualsTheThreeOperationsBitForBit) {
  for (const auto type : {torch::kFloat, torch::kBFloat16, torch::kDouble}) {
    for (const Sizes& sizes : {Sizes{2, 64, 24, 24}, Sizes{3, 16, 28, 28}, Sizes{1, 5, 2, 6},
                               Sizes{2, 3, 7, 9}, Sizes{0, 8, 4, 4}}) {
      const auto input = images(sizes, type);
      expect_equal(passes(input, fused), passes(input, plain),
                   std::string(c10::toString(type)) + " " + std::to_string(sizes[1]));
    }
  }
}

TEST(ReluMaxPool, GivesTheBiasItsGradient) {
  for (const auto type : {torch::kFloat, torch::kBFloat16, torch::kDouble}) {
    const auto input = images({6, 16, 28, 28}, type);
    const auto gradient = torch::randn({6, 16, 14, 14}).to(type);
    const auto got = bias_of(input).requires_grad_();
    const auto wanted = bias_of(input).requires_grad_();
    relu_max_pool2d(input, got).backward(gradient);
    const auto exact = torch::relu(input.to(torch::kDouble) + wanted.view({-1, 1, 1}));
    torch::max_pool2d(exact, 2).backward(gradient.to(torch::kDouble));
    EXPECT_EQ(got.grad().scalar_type(), torch::kFloat);
    EXPECT_TRUE(torch::allclose(got.grad(), wanted.grad(), 1e-5, 1e-4)) << c10::toString(type);
  }
}

TEST(ReluMaxPool, GradientsAreTheSlopesOfTheLoss) {
  const auto input = images({2, 8, 4, 4});
  const auto direction = torch::randn({2, 8, 2, 2});
  expect_gradients_are_slopes({input, bias_of(input)}, [&](const auto& at) {
    return (relu_max_pool2d(at[0], at[1]).to(torch::kFloat64) * direction).sum();
  });
}

TEST(ReluMaxPool, RefusesABiasOfAnotherSize) {
  EXPECT_ERROR(relu_max_pool2d(images({1, 8, 4, 4}), torch::zeros({7})), c10::Error,
               "relu_max_pool2d: expected a bias of [8], got [7]");
}

TEST(ReluMaxPool, KeepsTheLayoutAndTheType) {
  const auto input = images({2, 8, 4, 4}, torch::kBFloat16);
  const auto got = passes(input, fused);
  for (const auto& tensor : {got.output, got.gradient}) {
    EXPECT_TRUE(tensor.is_contiguous(torch::MemoryFormat::ChannelsLast));
    EXPECT_EQ(tensor.scalar_type(), torch::kBFloat16);
  }
}

TEST(ReluMaxPool, TheFirstOfEqualPixelsGetsTheGradient) {
  const auto input = to_channels_last(torch::full({1, 8, 4, 4}, 0.5));
  expect_equal(passes(input, fused), passes(input, plain), "equal pixels");
  EXPECT_EQ(passes(input, fused).gradient.count_nonzero().item<int>(), 8 * 4);
}

TEST(ReluMaxPool, NothingAboveZeroGetsNoGradient) {
  const auto input = -images({1, 8, 4, 4}).abs() - 1.0;
  EXPECT_EQ(passes(input, fused).gradient.count_nonzero().item<int>(), 0);
  expect_equal(passes(input, fused), passes(input, plain), "below zero");
}

TEST(ReluMaxPool, KeepsNanAndInfinity) {
  for (const float odd :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (std::int64_t place = 0; place < 4; ++place) {
      auto input = images({1, 8, 4, 4});
      input.index_put_({0, 3, place / 2, place % 2}, odd);
      const auto got = passes(input, fused);
      EXPECT_FALSE(got.output.isfinite().all().item<bool>());
      expect_equal(got, passes(input, plain), "odd number at " + std::to_string(place));
    }
  }
}

// Every upper half of a float, so every NaN and both infinities, with lower halves around a tie.
std::vector<float> floats_of_every_class() {
  std::vector<float> floats;
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const std::uint32_t lower : {0x0000U, 0x0001U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      floats.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  return floats;
}

TEST(Bfloat16, IsRoundedAsTheClassOfC10Rounds) {
  auto numbers = floats_of_every_class();
  const auto random =
      torch::randint(std::numeric_limits<std::int32_t>::min(),
                     std::numeric_limits<std::int32_t>::max(), {100'000}, torch::kInt32);
  const auto* bits = random.const_data_ptr<std::int32_t>();
  for (std::int64_t i = 0; i < random.numel(); ++i)
    numbers.push_back(std::bit_cast<float>(bits[i]));
  for (const float number : numbers) {
    const auto got = kernels::rounded<kernels::Bfloat16Bits>(kernels::coefficient(number));
    ASSERT_EQ(got, c10::BFloat16(number).x) << std::hex << std::bit_cast<std::uint32_t>(number);
  }
}

// The loops, compiled for vector instructions, with the numbers as biases of an image of zeros.
TEST(ReluMaxPool, RoundsEveryFloatToBfloat16AndKeepsNan) {
  const auto numbers = floats_of_every_class();
  const std::int64_t channels = kernels::kMostChannels;
  const auto zeros = to_channels_last(torch::zeros({1, channels, 2, 2})).to(torch::kBFloat16);
  for (std::size_t first = 0; first < numbers.size(); first += kernels::kMostChannels) {
    const auto bias =
        torch::tensor(at::ArrayRef<float>(numbers).slice(first, kernels::kMostChannels));
    const auto output = relu_max_pool2d(zeros, bias);
    const auto* got = output.const_data_ptr<c10::BFloat16>();
    for (std::size_t i = 0; i < kernels::kMostChannels; ++i) {
      const float number = numbers[first + i];
      const c10::BFloat16 wanted = number <= 0.0F ? 0.0F : number;
      ASSERT_EQ(got[i].x, wanted.x) << std::hex << std::bit_cast<std::uint32_t>(number);
    }
  }
}

TEST(ReluMaxPool, AGradientInAnotherLayoutIsTaken) {
  const auto input = images({2, 8, 4, 4});
  const auto flat = [](const auto& pool) {
    return [&pool](const torch::Tensor& x) { return torch::flatten(pool(x), 1) * 1.0; };
  };
  expect_equal(passes(input, flat(fused)), passes(input, flat(plain)), "flattened");
}

// The operations that batch_norm_relu_max_pool2d equals, and the tensors that they change.
struct Normalised {
  torch::Tensor weight = torch::linspace(0.5, 1.5, 16).requires_grad_();
  torch::Tensor bias = torch::linspace(-0.3, 0.4, 16).requires_grad_();
  torch::Tensor mean = torch::zeros({16});
  torch::Tensor var = torch::ones({16});

  BatchNormTensors tensors() const { return {weight, bias, mean, var}; }
  Passes fused(const torch::Tensor& input) {
    return passes(input, [&](const torch::Tensor& x) {
      return batch_norm_relu_max_pool2d(x, tensors(), 0.1, 1e-5);
    });
  }
  Passes plain(const torch::Tensor& input) {
    return passes(input, [&](const torch::Tensor& x) {
      const auto y = torch::batch_norm(x, weight, bias, mean, var, true, 0.1, 1e-5, false);
      return torch::max_pool2d(torch::relu(y), 2);
    });
  }
};

TEST(BatchNormReluMaxPool, EqualsTheThreeOperations) {
  const auto input = images({6, 16, 28, 28}) * 2.0 + 5.0;
  Normalised fused;
  Normalised wanted;
  const auto got = fused.fused(input);
  const auto plain = wanted.plain(input);
  constexpr double kOtherOrder = 1e-5;  // of float sums over 4,704 pixels at a mean of 5
  EXPECT_LT(relative_difference(got.output, plain.output), kOtherOrder);
  EXPECT_LT(relative_difference(got.gradient, plain.gradient), kOtherOrder);
  EXPECT_LT(relative_difference(fused.weight.grad(), wanted.weight.grad()), kOtherOrder);
  EXPECT_LT(relative_difference(fused.bias.grad(), wanted.bias.grad()), kOtherOrder);
  EXPECT_LT(relative_difference(fused.mean, wanted.mean), kOtherOrder);
  EXPECT_LT(relative_difference(fused.var, wanted.var), kOtherOrder);
}

// In double, where a sum's order does not matter: a difference is a slip and no rounding.
TEST(BatchNormReluMaxPool, IsNearerToTheExactResultThanTheThreeOperations) {
  const auto input = images({6, 16, 28, 28}) * 2.0 + 5.0;
  Normalised fused;
  Normalised plain;
  Normalised exact;
  for (auto* tensor : {&exact.weight, &exact.bias, &exact.mean, &exact.var}) {
    *tensor = tensor->detach().to(torch::kFloat64).requires_grad_(tensor->requires_grad());
  }
  const auto got = fused.fused(input);
  const auto other = plain.plain(input);
  const auto wanted = exact.plain(input.to(torch::kFloat64));
  EXPECT_LT(relative_difference(got.output, wanted.output), 2e-7);
  EXPECT_LT(relative_difference(got.gradient, wanted.gradient), 1e-6);
  EXPECT_LE(relative_difference(got.gradient, wanted.gradient),
            2.0 * relative_difference(other.gradient, wanted.gradient));
}

TEST(BatchNormReluMaxPool, GradientsAreTheSlopesOfTheLoss) {
  const Normalised net;
  torch::manual_seed(5);
  const auto direction = torch::randn({2, 16, 2, 2});
  expect_gradients_are_slopes({images({2, 16, 4, 4}), net.weight, net.bias}, [&](const auto& at) {
    const BatchNormTensors tensors = {at[1], at[2], net.mean.clone(), net.var.clone()};
    const auto output = batch_norm_relu_max_pool2d(at[0], tensors, 0.1, 1e-5);
    return (output.to(torch::kFloat64) * direction).sum();
  });
}

TEST(BatchNormReluMaxPool, TheBiasOfTheInputOnlyMovesTheRunningMean) {
  const auto input = images({6, 16, 28, 28});
  const auto input_bias = torch::linspace(-2.0, 2.0, 16).requires_grad_();
  Normalised wanted;
  wanted.fused(input + input_bias.detach().view({-1, 1, 1}));
  const Normalised got;
  auto tensors = got.tensors();
  tensors.input_bias = input_bias;
  const auto output = [&](const torch::Tensor& x) {
    return batch_norm_relu_max_pool2d(x, tensors, 0.1, 1e-5);
  };
  expect_equal(passes(input, output), Normalised().fused(input), "the same normalised images");
  EXPECT_EQ(input_bias.grad().count_nonzero().item<int>(), 0);
  EXPECT_LT(relative_difference(got.mean, wanted.mean), 1e-6);
  EXPECT_LT(relative_difference(got.var, wanted.var), 1e-5);
  tensors.input_bias = torch::zeros({15});
  EXPECT_ERROR(output(input), c10::Error, "expected an input_bias of [16], got [15]");
}

TEST(BatchNormReluMaxPool, HasTheSameBitsOnAnyNumberOfThreads) {
  const auto input = images({32, 16, 28, 28});
  const int before = at::get_num_threads();
  std::vector<Passes> found;
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    found.push_back(Normalised().fused(input));
  }
  at::set_num_threads(before);
  expect_equal(found[1], found[0], "two threads");
  expect_equal(found[2], found[0], "three threads");
}

TEST(BatchNormReluMaxPool, TakesBfloat16) {
  const auto input = images({4, 16, 8, 8}, torch::kBFloat16);
  Normalised fused;
  Normalised wanted;
  const auto got = fused.fused(input);
  const auto plain = wanted.plain(input.to(torch::kFloat));
  EXPECT_EQ(got.output.scalar_type(), torch::kBFloat16);
  EXPECT_LT(relative_difference(got.output, plain.output), 0.004);  // 8 bits
  EXPECT_LT(relative_difference(fused.mean, wanted.mean), 1e-6);
}

TEST(BatchNormReluMaxPool, KeepsANanWithTheLargestPayloadInBfloat16) {
  Normalised net;
  net.weight.mutable_data_ptr<float>()[3] = std::bit_cast<float>(0x7FFFFFFFU);
  const auto got = net.fused(images({4, 16, 8, 8}, torch::kBFloat16));
  for (const auto& tensor : {got.output, got.gradient}) {
    EXPECT_TRUE(tensor.select(1, 3).isnan().all().item<bool>());
    EXPECT_EQ(tensor.isnan().sum().item<std::int64_t>(), tensor.select(1, 3).numel());
  }
}

TEST(BatchNormReluMaxPool, ReportsWhichImagesItTakes) {
  EXPECT_TRUE(can_fuse_batch_norm(images({2, 16, 4, 4})));
  EXPECT_FALSE(can_fuse_batch_norm(images({2, 12, 4, 4}))) << "channels";
  EXPECT_FALSE(can_fuse_batch_norm(images({2, 16, 5, 4}))) << "odd";
  EXPECT_FALSE(can_fuse_batch_norm(torch::randn({2, 16, 4, 4}))) << "NCHW";
  EXPECT_FALSE(can_fuse_batch_norm(images({2, 16, 4, 4}, torch::kDouble))) << "double";
}

}  // namespace
}  // namespace ladder
