// SPDX-License-Identifier: Apache-2.0
// relu_max_pool2d and batch_norm_relu_max_pool2d against their bodies in nn/ops.h.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "ladder/kernels/batch_norm_relu_max_pool.h"
#include "ladder/kernels/pool_windows.h"
#include "ladder/kernels/relu_max_pool.h"
#include "ladder/nn/channels_last.h"
#include "ladder/nn/ops.h"
#include "tests/support/expect_error.h"
#include "tests/support/relative_difference.h"

namespace ladder {
namespace {

using Sizes = std::vector<std::int64_t>;

TEST(Ops, AreKernelsInAProgramThatLinksThem) {
  using Entries = std::array<void*, sizeof(Ops) / sizeof(void*)>;
  const auto entries = std::bit_cast<Entries>(ops());
  const auto bodies = std::bit_cast<Entries>(Ops());
  for (std::size_t i = 0; i < bodies.size(); ++i) EXPECT_NE(entries[i], bodies[i]) << i;
}

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

torch::Tensor pool_body(const torch::Tensor& input) {
  return plain::relu_max_pool2d(input, bias_of(input));
}

void expect_equal(const Passes& got, const Passes& wanted, const std::string& what) {
  EXPECT_TRUE(torch::equal(got.output.nan_to_num(9.0), wanted.output.nan_to_num(9.0))) << what;
  EXPECT_TRUE(torch::equal(got.gradient, wanted.gradient)) << what;
}

TEST(ReluMaxPool, EqualsTheThreeOperationsBitForBit) {
  for (const auto type : {torch::kFloat, torch::kBFloat16, torch::kDouble}) {
    for (const Sizes& sizes : {Sizes{2, 64, 24, 24}, Sizes{3, 16, 28, 28}, Sizes{1, 5, 2, 6},
                               Sizes{2, 3, 7, 9}, Sizes{0, 8, 4, 4}}) {
      SCOPED_TRACE(std::string(c10::toString(type)) + " " + std::to_string(sizes[1]));
      const auto input = images(sizes, type);
      const auto got = passes(input, fused);
      expect_equal(got, passes(input, pool_body), "");
      for (const auto& tensor : {got.output, got.gradient}) {
        EXPECT_EQ(tensor.scalar_type(), type);
        if (type == torch::kDouble) continue;  // LibTorch's layout
        EXPECT_TRUE(tensor.is_contiguous(torch::MemoryFormat::ChannelsLast));
      }
    }
  }
  EXPECT_ERROR(relu_max_pool2d(images({1, 8, 4, 4}), torch::zeros({7})), c10::Error,
               "relu_max_pool2d: expected a bias of [8], got [7]");
}

TEST(ReluMaxPool, GivesTheBiasItsGradient) {
  for (const auto type : {torch::kFloat, torch::kBFloat16, torch::kDouble}) {
    const auto input = images({6, 16, 28, 28}, type);
    const auto gradient = torch::randn({6, 16, 14, 14}).to(type);
    const auto got = bias_of(input).requires_grad_();
    const auto wanted = bias_of(input).requires_grad_();
    relu_max_pool2d(input, got).backward(gradient);
    plain::relu_max_pool2d(input.to(torch::kDouble), wanted).backward(gradient.to(torch::kDouble));
    EXPECT_EQ(got.grad().scalar_type(), torch::kFloat);
    EXPECT_TRUE(torch::allclose(got.grad(), wanted.grad(), 1e-5, 1e-4)) << c10::toString(type);
  }
}

TEST(ReluMaxPool, TheFirstOfEqualPixelsGetsTheGradientAndNoneBelowZero) {
  const auto equal = to_channels_last(torch::full({1, 8, 4, 4}, 0.5));
  expect_equal(passes(equal, fused), passes(equal, pool_body), "equal pixels");
  EXPECT_EQ(passes(equal, fused).gradient.count_nonzero().item<int>(), 8 * 4);
  const auto below = -images({1, 8, 4, 4}).abs() - 1.0;
  EXPECT_EQ(passes(below, fused).gradient.count_nonzero().item<int>(), 0);
  expect_equal(passes(below, fused), passes(below, pool_body), "below zero");
}

TEST(ReluMaxPool, KeepsNanAndInfinity) {
  for (const float odd :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (std::int64_t place = 0; place < 4; ++place) {
      auto input = images({1, 8, 4, 4});
      input.index_put_({0, 3, place / 2, place % 2}, odd);
      const auto got = passes(input, fused);
      EXPECT_FALSE(got.output.isfinite().all().item<bool>());
      expect_equal(got, passes(input, pool_body), "odd number at " + std::to_string(place));
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

// The loops, compiled for vector instructions, with the numbers as biases of an image of zeros.
TEST(ReluMaxPool, RoundsEveryFloatToBfloat16AndKeepsNan) {
  const auto numbers = floats_of_every_class();
  const std::int64_t channels = kernels::kMaxChannels;
  const auto zeros = to_channels_last(torch::zeros({1, channels, 2, 2})).to(torch::kBFloat16);
  for (std::size_t first = 0; first < numbers.size(); first += kernels::kMaxChannels) {
    const auto bias =
        torch::tensor(at::ArrayRef<float>(numbers).slice(first, kernels::kMaxChannels));
    const auto output = relu_max_pool2d(zeros, bias);
    const auto* got = output.const_data_ptr<c10::BFloat16>();
    for (std::size_t i = 0; i < kernels::kMaxChannels; ++i) {
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
  expect_equal(passes(input, flat(fused)), passes(input, flat(pool_body)), "flattened");
}

// batch_norm_relu_max_pool2d and its body, and the tensors that they change.
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
  Passes body(const torch::Tensor& input) {
    return passes(input, [&](const torch::Tensor& x) {
      return plain::batch_norm_relu_max_pool2d(x, tensors(), 0.1, 1e-5, {});
    });
  }
};

// Against double, where a sum's order does not matter: a difference is a slip and no rounding.
TEST(BatchNormReluMaxPool, EqualsTheThreeOperationsInDouble) {
  for (const auto type : {torch::kFloat, torch::kBFloat16}) {
    const bool is_float = type == torch::kFloat;
    const auto input = (images({6, 16, 28, 28}) * 2.0 + 5.0).to(type);
    Normalised fused;
    Normalised exact;
    for (auto* tensor : {&exact.weight, &exact.bias, &exact.mean, &exact.var}) {
      *tensor = tensor->detach().to(torch::kFloat64).requires_grad_(tensor->requires_grad());
    }
    const auto got = fused.fused(input);
    const auto wanted = exact.body(input.to(torch::kFloat64));
    EXPECT_EQ(got.output.scalar_type(), type);
    EXPECT_LT(relative_difference(got.output, wanted.output), is_float ? 2e-7 : 0.004);
    EXPECT_LT(relative_difference(fused.mean, exact.mean), 1e-6);
    EXPECT_LT(relative_difference(fused.var, exact.var), 1e-6);
    if (!is_float) continue;  // after rounding another pixel may be the largest
    EXPECT_LT(relative_difference(got.gradient, wanted.gradient), 1e-6);
    EXPECT_LT(relative_difference(fused.weight.grad(), exact.weight.grad()), 1e-6);
    EXPECT_LT(relative_difference(fused.bias.grad(), exact.bias.grad()), 1e-6);
  }
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
  for (const auto& other : {images({2, 16, 5, 4}), torch::randn({2, 16, 4, 4})}) {
    expect_equal(Normalised().fused(other), Normalised().body(other), "its body for others");
  }
}

}  // namespace
}  // namespace ladder
