// SPDX-License-Identifier: Apache-2.0
// first_conv2d and conv2d_relu_max_pool2d against their bodies in nn/ops.h. Runs once for
// each set of instructions: see tests/CMakeLists.txt.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <limits>
#include <string>
#include <vector>

#include "ladder/amp/autocast.h"
#include "ladder/kernels/conv_relu_max_pool.h"
#include "ladder/kernels/first_conv2d.h"
#include "ladder/kernels/vectors.h"
#include "ladder/nn/channels_last.h"
#include "tests/support/cpu_capability.h"
#include "tests/support/expect_error.h"
#include "tests/support/relative_difference.h"

namespace ladder {
namespace {

constexpr double kConvOrder = 2e-6;       // of float sums, against sums in float64
constexpr double kOtherAlgorithm = 1e-5;  // transforms of Winograd or Fourier, which round more

// The tensors of a convolution. Half of the gradient is zero, as behind a dropout.
struct ConvLayer {
  torch::Tensor input;
  torch::Tensor weight;
  torch::Tensor bias;
  torch::Tensor gradient;

  ConvLayer to(torch::ScalarType type) const {
    return {input.to(type), weight.to(type), bias.to(type), gradient.to(type)};
  }
};

// The output, and the gradients of weight, bias and, if it has one, input.
template <typename Function>
std::vector<torch::Tensor> conv_passes(const ConvLayer& of, bool of_input,
                                       const Function& function) {
  std::vector<torch::Tensor> leaves;
  for (const auto& tensor : {of.weight, of.bias, of.input}) {
    leaves.push_back(tensor.detach().clone().requires_grad_(leaves.size() < 2 || of_input));
  }
  auto output = function(leaves[2], leaves[0], leaves[1]);
  output.backward(of.gradient.to(output.scalar_type()));
  std::vector<torch::Tensor> found = {output.detach()};
  for (const auto& leaf : leaves) {
    if (leaf.requires_grad()) found.push_back(leaf.grad());
  }
  return found;
}

void expect_close(const std::vector<torch::Tensor>& got, const std::vector<torch::Tensor>& wanted,
                  double most, const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].sizes(), wanted[i].sizes()) << i << " of " << what;
    EXPECT_LT(relative_difference(got[i], wanted[i]), most) << i << " of " << what;
  }
}

class Convolution : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_cpu_capability()) GTEST_SKIP() << "this processor has no " << cpu_capability();
  }
};
class FirstConv2d : public Convolution {};
class ConvReluMaxPool : public Convolution {};

TEST_F(Convolution, UsesTheInstructionsThatTheTestIsFor) {
  if (cpu_capability().empty()) GTEST_SKIP() << "ATEN_CPU_CAPABILITY is not set";
  const auto plain = [] { return "default"; };
  const auto avx2 = [] { return "avx2"; };
  const auto avx512 = [] { return "avx512"; };
  using Name = const char*();
  EXPECT_EQ(kernels::for_this_cpu<Name>(plain, avx2, avx512)(), cpu_capability());
}

struct FirstShape {
  std::int64_t images, height, width, channels, size, padding;
};

ConvLayer first_layer(const FirstShape& of) {
  torch::manual_seed(3);
  const auto output = [&](std::int64_t input) { return input + 2 * of.padding - of.size + 1; };
  return {to_channels_last(torch::randn({of.images, 1, of.height, of.width})),
          to_channels_last(torch::randn({of.channels, 1, of.size, of.size})) * 0.3,
          torch::randn({of.channels}),
          to_channels_last(
              torch::randn({of.images, of.channels, output(of.height), output(of.width)}))};
}

const std::vector<FirstShape> kFirstShapes = {{20, 28, 28, 32, 3, 0},
                                              {3, 28, 28, 16, 5, 2},
                                              {1, 5, 9, 48, 5, 0},
                                              {2, 3, 3, 16, 3, 1},
                                              {0, 8, 8, 16, 3, 0}};

auto first(std::int64_t padding, Activation activation) {
  return [=](const torch::Tensor& input, const torch::Tensor& weight, const torch::Tensor& bias) {
    return first_conv2d(input, weight, bias, padding, activation);
  };
}

auto first_body(std::int64_t padding, Activation activation) {
  return [=](const torch::Tensor& input, const torch::Tensor& weight, const torch::Tensor& bias) {
    return plain::first_conv2d(input, weight, bias, padding, activation);
  };
}

TEST_F(FirstConv2d, IsThatOfLibTorch) {
  for (const auto& shape : kFirstShapes) {
    for (const auto activation : {Activation::kNone, Activation::kRelu}) {
      const ConvLayer of = first_layer(shape);
      const auto got = conv_passes(of, false, first(shape.padding, activation));
      if (shape.images == 0) {
        EXPECT_EQ(got[1].count_nonzero().item<int>(), 0);
        continue;
      }
      const auto wanted =
          conv_passes(of.to(torch::kFloat64), false, first_body(shape.padding, activation));
      expect_close(got, wanted, kConvOrder, std::to_string(shape.channels) + " channels");
      EXPECT_TRUE(got[0].is_contiguous(torch::MemoryFormat::ChannelsLast));
    }
  }
}

TEST_F(FirstConv2d, ComputesInBfloat16UnderAutocast) {
  const FirstShape shape = {3, 28, 28, 32, 3, 0};
  const ConvLayer of = first_layer(shape);
  const ConvLayer rounded = of.to(torch::kBFloat16).to(torch::kFloat64);
  const Autocast autocast(torch::kCPU, torch::kBFloat16);
  const auto got = conv_passes(of, false, first(0, Activation::kRelu));
  const auto wanted = conv_passes(rounded, false, first_body(0, Activation::kRelu));
  EXPECT_EQ(got[0].scalar_type(), torch::kBFloat16);
  EXPECT_LT(relative_difference(got[0], wanted[0]), 0.004);  // 8 bits
  for (const std::size_t i : {1U, 2U}) {
    EXPECT_EQ(got[i].scalar_type(), torch::kFloat);
    EXPECT_LT(relative_difference(got[i], wanted[i]), kConvOrder) << "not rounded: " << i;
  }
}

TEST_F(FirstConv2d, TakesTheOperationsOfLibTorchForOtherInputs) {
  torch::manual_seed(3);
  ConvLayer three_channels = first_layer({2, 8, 8, 16, 3, 0});
  three_channels.input = torch::randn({2, 3, 8, 8});
  three_channels.weight = torch::randn({16, 3, 3, 3});
  ConvLayer seven_by_seven = first_layer({2, 8, 8, 16, 7, 0});
  ConvLayer ten_outputs = first_layer({2, 8, 8, 10, 3, 0});
  ConvLayer with_gradient = first_layer({2, 8, 8, 16, 3, 0});
  for (const ConvLayer* of : {&three_channels, &seven_by_seven, &ten_outputs, &with_gradient}) {
    const bool of_input = of == &with_gradient;
    expect_close(conv_passes(*of, of_input, first(0, Activation::kRelu)),
                 conv_passes(*of, of_input, first_body(0, Activation::kRelu)), 1e-6,
                 "another input");
  }
}

struct ConvShape {
  std::int64_t images, inputs, height, width, outputs;
};

ConvLayer conv_layer(const ConvShape& of) {
  torch::manual_seed(3);
  const auto gradient =
      torch::randn({of.images, of.outputs, (of.height - 2) / 2, (of.width - 2) / 2});
  return {to_channels_last(torch::randn({of.images, of.inputs, of.height, of.width})),
          to_channels_last(torch::randn({of.outputs, of.inputs, 3, 3})) * 0.1,
          torch::linspace(-0.3, 0.4, of.outputs),
          to_channels_last(gradient * torch::rand_like(gradient).gt(0.5))};
}

// Channels of one and of several words and blocks, rows of more windows than a word has bits, fewer
// images than groups and more, and the shape of BasicNet.
const std::vector<ConvShape> kConvShapes = {{18, 32, 26, 26, 64}, {3, 16, 8, 10, 16},
                                            {2, 48, 6, 12, 80},   {1, 64, 4, 4, 144},
                                            {1, 16, 6, 150, 32},  {0, 16, 8, 8, 16}};

TEST_F(ConvReluMaxPool, IsThatOfLibTorch) {
  for (const auto& shape : kConvShapes) {
    const ConvLayer of = conv_layer(shape);
    const auto got = conv_passes(of, true, conv2d_relu_max_pool2d);
    if (shape.images == 0) {
      EXPECT_EQ(got[1].count_nonzero().item<int>(), 0);
      continue;
    }
    const auto wanted = conv_passes(of.to(torch::kFloat64), true, plain::conv2d_relu_max_pool2d);
    expect_close(got, wanted, kConvOrder, std::to_string(shape.outputs) + " channels");
    EXPECT_TRUE(got[0].is_contiguous(torch::MemoryFormat::ChannelsLast));
    EXPECT_TRUE(got[3].is_contiguous(torch::MemoryFormat::ChannelsLast));
  }
}

// The inputs are such that sums of products are exact in float: then it is certain how they round
// to bfloat16, and which pixel of a window is the first of the largest.
TEST_F(ConvReluMaxPool, ComputesInBfloat16UnderAutocastAndSumsInFloat) {
  ConvLayer of = conv_layer({3, 32, 10, 10, 64});
  of.input = of.input.mul(4.0).round().div(4.0);
  of.weight = of.weight.mul(80.0).round().div(8.0);
  of.gradient = of.gradient.to(torch::kBFloat16);
  of.bias.zero_();
  const auto rounding = [](const auto& input, const auto& weight, const auto& bias) {
    const auto sum = torch::conv2d(input, weight, bias);
    const auto error = sum.detach().to(torch::kBFloat16).to(torch::kFloat64) - sum.detach();
    return torch::max_pool2d(torch::relu(sum + error), 2);
  };
  const auto wanted = conv_passes(of.to(torch::kFloat64), true, rounding);
  const Autocast autocast(torch::kCPU, torch::kBFloat16);
  for (const auto type : {torch::kFloat, torch::kBFloat16}) {
    of.input = of.input.to(type);
    const auto got = conv_passes(of, true, conv2d_relu_max_pool2d);
    EXPECT_EQ(got[0].scalar_type(), torch::kBFloat16);
    EXPECT_TRUE(torch::equal(got[0].to(torch::kFloat64), wanted[0]));
    EXPECT_EQ(got[1].scalar_type(), torch::kFloat);
    EXPECT_LT(relative_difference(got[1], wanted[1]), kConvOrder) << "not rounded";
    EXPECT_LT(relative_difference(got[2], wanted[2]), kConvOrder) << "not rounded";
    EXPECT_EQ(got[3].scalar_type(), type);
    EXPECT_LT(relative_difference(got[3], wanted[3]), 0.004);  // 8 bits
  }
}

TEST_F(ConvReluMaxPool, HasTheSameBitsOnAnyNumberOfThreads) {
  const ConvLayer of = conv_layer({18, 32, 10, 10, 64});
  const int before = at::get_num_threads();
  std::vector<std::vector<torch::Tensor>> found;
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    found.push_back(conv_passes(of, true, conv2d_relu_max_pool2d));
  }
  at::set_num_threads(before);
  for (std::size_t i = 0; i < found[0].size(); ++i) {
    EXPECT_TRUE(torch::equal(found[1][i], found[0][i])) << "two threads, " << i;
    EXPECT_TRUE(torch::equal(found[2][i], found[0][i])) << "three threads, " << i;
  }
}

// LibTorch then computes 16 and more images with NNPACK, whose output is not channels last.
TEST_F(ConvReluMaxPool, IsThatOfLibTorchWithoutOnednn) {
  const ConvLayer of = conv_layer({18, 16, 8, 10, 16});
  const auto wanted = conv_passes(of.to(torch::kFloat64), true, plain::conv2d_relu_max_pool2d);
  at::globalContext().setUserEnabledMkldnn(false);
  const auto got = conv_passes(of, true, conv2d_relu_max_pool2d);
  at::globalContext().setUserEnabledMkldnn(true);
  expect_close(got, wanted, kOtherAlgorithm, "without oneDNN");
}

TEST_F(ConvReluMaxPool, TakesADenseBackwardForOtherInputs) {
  ConvLayer odd = conv_layer({2, 16, 9, 8, 16});
  ConvLayer twelve_inputs = conv_layer({2, 12, 8, 8, 16});
  ConvLayer ten_outputs = conv_layer({2, 16, 8, 8, 10});
  ConvLayer in_double = conv_layer({2, 16, 8, 8, 16}).to(torch::kFloat64);
  ConvLayer many_outputs = conv_layer({1, 16, 4, 4, 4112});
  ConvLayer nchw = conv_layer({2, 16, 8, 8, 16});
  nchw.input = nchw.input.contiguous();
  for (const ConvLayer* of :
       {&odd, &twelve_inputs, &ten_outputs, &in_double, &many_outputs, &nchw}) {
    expect_close(conv_passes(*of, true, conv2d_relu_max_pool2d),
                 conv_passes(*of, true, plain::conv2d_relu_max_pool2d), 1e-6, "another input");
  }
}

TEST_F(ConvReluMaxPool, SpreadsANanOfTheGradient) {
  const ConvLayer of = conv_layer({1, 16, 4, 4, 16});
  of.bias.fill_(100.0);  // no window without a gradient
  of.gradient[0][3] = std::numeric_limits<float>::quiet_NaN();
  const auto got = conv_passes(of, true, conv2d_relu_max_pool2d);
  EXPECT_TRUE(got[1][3].isnan().all().item<bool>());
  EXPECT_TRUE(got[2][3].isnan().item<bool>());
  EXPECT_TRUE(got[3].isnan().any().item<bool>());
  EXPECT_FALSE(got[1][4].isnan().any().item<bool>());
}

TEST_F(Convolution, RefusesABiasOfAnotherSize) {
  const ConvLayer of = first_layer({2, 8, 8, 16, 3, 0});
  const auto bias = torch::zeros({7});
  EXPECT_ERROR(first(0, Activation::kNone)(of.input, of.weight, bias), c10::Error,
               "first_conv2d: expected a bias of [16], got [7]");
  const ConvLayer second = conv_layer({1, 16, 4, 4, 16});
  EXPECT_ERROR(conv2d_relu_max_pool2d(second.input, second.weight, bias), c10::Error,
               "relu_max_pool2d: expected a bias of [16], got [7]");
}

}  // namespace
}  // namespace ladder
