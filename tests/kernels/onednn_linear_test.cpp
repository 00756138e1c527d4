// SPDX-License-Identifier: Apache-2.0
// linear by oneDNN against its body in nn/ops.h.
#include "ladder/kernels/onednn_linear.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <array>
#include <vector>

#include "ladder/amp/autocast.h"
#include "ladder/nn/ops.h"
#include "tests/support/relative_difference.h"

namespace ladder {
namespace {

struct Layer {
  torch::Tensor input;
  torch::Tensor weight;
  torch::Tensor bias;
};

Layer layer(std::int64_t samples, std::int64_t inputs, std::int64_t outputs,
            torch::ScalarType type = torch::kFloat) {
  torch::manual_seed(3);
  return {torch::randn({samples, inputs}, type).requires_grad_(),
          torch::randn({outputs, inputs}, type).requires_grad_(),
          torch::randn({outputs}, type).requires_grad_()};
}

// The output, and the gradients of input, weight and bias.
template <typename Function>
std::vector<torch::Tensor> passes(const Layer& of, const Function& function) {
  for (auto tensor : {of.input, of.weight, of.bias}) tensor.mutable_grad() = torch::Tensor();
  const auto output = function(of.input, of.weight, of.bias);
  torch::manual_seed(4);
  output.backward(torch::randn(output.sizes(), output.scalar_type()));
  return {output.detach(), of.input.grad(), of.weight.grad(), of.bias.grad()};
}

// Without products.
torch::Tensor plain_onednn(const torch::Tensor& input, const torch::Tensor& weight,
                           const torch::Tensor& bias) {
  return onednn_linear(input, weight, bias);
}

torch::Tensor linear_body(const torch::Tensor& input, const torch::Tensor& weight,
                          const torch::Tensor& bias) {
  return plain::linear(input, weight, bias, {});
}

TEST(OnednnLinear, IsThatOfLibTorch) {
  constexpr double kOtherOrder = 6e-6;  // sums of at most 9216 floats: 96 roundings of 2^-24
  for (const auto& [samples, inputs, outputs] :
       {std::array<std::int64_t, 3>{64, 9216, 128}, {1, 7, 3}, {33, 40, 1}, {5, 1, 4}}) {
    const Layer of = layer(samples, inputs, outputs);
    const auto got = passes(of, plain_onednn);
    const auto wanted = passes(of, linear_body);
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_LT(relative_difference(got[i], wanted[i]), kOtherOrder) << i << " at " << inputs;
      EXPECT_TRUE(got[i].is_contiguous()) << i << " at " << inputs;
    }
  }
}

TEST(OnednnLinear, TakesAGradientInAnotherLayout) {
  const Layer of = layer(6, 8, 5);
  const auto transposed = [](const auto& function) {
    return [&function](const auto&... arguments) { return function(arguments...).t(); };
  };
  const auto got = passes(of, transposed(plain_onednn));
  const auto wanted = passes(of, transposed(linear_body));
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(torch::allclose(got[i], wanted[i], 1e-5, 1e-6)) << i;
  }
}

TEST(OnednnLinear, LeavesOtherTypesAndEmptyBatchesToLibTorch) {
  for (const Layer& of :
       {layer(3, 8, 5, torch::kDouble), layer(3, 8, 5, torch::kBFloat16), layer(0, 8, 5)}) {
    const auto got = passes(of, plain_onednn);
    const auto wanted = passes(of, linear_body);
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(torch::equal(got[i], wanted[i])) << i;
  }
  const Layer of = layer(3, 8, 5);
  const Autocast autocast(torch::kCPU, torch::kBFloat16);
  EXPECT_EQ(plain_onednn(of.input, of.weight, of.bias).scalar_type(), torch::kBFloat16);
}

TEST(OnednnLinear, PutsTheFactorsOfTheWeightGradientInTheProducts) {
  const Layer of = layer(6, 64, 4);
  const auto products = c10::make_intrusive<WeightProducts>();
  const auto keeping = [&](const auto&... tensors) { return onednn_linear(tensors..., products); };
  const auto got = passes(of, keeping);
  EXPECT_FALSE(got[2].defined());
  ASSERT_EQ(products->kept.size(), 1U);
  const auto& [gradient, input] = products->kept[0];
  EXPECT_TRUE(torch::equal(input, of.input));
  const auto wanted = passes(of, plain_onednn);
  EXPECT_LT(relative_difference(gradient.t().mm(input), wanted[2]), 1e-6);
  EXPECT_TRUE(torch::equal(got[1], wanted[1]));
  const Layer odd = layer(6, 8, 5);  // not a shape of which a caller adds products
  EXPECT_TRUE(passes(odd, keeping)[2].defined());
}

TEST(OnednnLinear, ComputesNoGradientThatNobodyNeeds) {
  const Layer of = layer(3, 8, 5);
  onednn_linear(of.input.detach(), of.weight, of.bias.detach()).sum().backward();
  EXPECT_FALSE(of.input.grad().defined());
  EXPECT_FALSE(of.bias.grad().defined());
  EXPECT_TRUE(of.weight.grad().defined());
}

}  // namespace
}  // namespace ladder
