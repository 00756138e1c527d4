// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/clip_grad.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ladder/checkpoint/safetensors.h"
#include "ladder/core/error.h"
#include "tests/support/expect_error.h"

namespace ladder {
namespace {

using Tensors = std::vector<torch::Tensor>;

constexpr int kClipped = 3;

const SafetensorsFile& clip_file() {
  static const SafetensorsFile file =
      load_safetensors(LADDER_SOURCE_DIR "/tests/golden/clip_grad.safetensors");
  return file;
}

const torch::Tensor& clip_tensor(const std::string& name) { return clip_file().tensors.at(name); }

torch::Tensor parameter_with(const torch::Tensor& gradient) {
  auto parameter = torch::zeros_like(gradient).requires_grad_();
  parameter.mutable_grad() = gradient.clone();
  return parameter;
}

Tensors clip_parameters() {
  Tensors parameters;
  for (int i = 0; i < kClipped; ++i) {
    parameters.push_back(parameter_with(clip_tensor("gradient" + std::to_string(i))));
  }
  return parameters;
}

// Bit by bit, NaN included.
void expect_same_bits(const torch::Tensor& got, const torch::Tensor& expected) {
  EXPECT_EQ(got.sizes(), expected.sizes());
  EXPECT_TRUE(torch::equal(got.isnan(), expected.isnan()));
  EXPECT_TRUE(torch::equal(got.nan_to_num(), expected.nan_to_num())) << got;
}

void expect_gradients(const Tensors& parameters, const std::string& name) {
  for (int i = 0; i < kClipped; ++i) {
    expect_same_bits(parameters[static_cast<std::size_t>(i)].grad(),
                     clip_tensor(name + ".gradient" + std::to_string(i)));
  }
}

TEST(ClipGradNorm, IsPythons) {
  const auto norms = nlohmann::json::parse(clip_file().metadata.at("norms"));
  EXPECT_EQ(norms.size(), 5U);
  for (const auto& [name, options] : norms.items()) {
    SCOPED_TRACE(name);
    const auto parameters = clip_parameters();
    const auto norm = clip_grad_norm_(parameters, std::stod(options[0].get<std::string>()),
                                      std::stod(options[1].get<std::string>()));
    EXPECT_EQ(norm.dim(), 0);
    expect_same_bits(norm, clip_tensor(name + ".norm"));
    expect_gradients(parameters, name);
  }
}

TEST(ClipGradNorm, OfInfAndNanIsPythons) {
  for (const std::string name : {"inf", "nan"}) {
    SCOPED_TRACE(name);
    const auto parameters = clip_parameters();
    parameters.back().grad()[3] = std::stod(name);
    expect_same_bits(clip_grad_norm_(parameters, 1.0), clip_tensor(name + ".norm"));
    expect_gradients(parameters, name);
  }
}

TEST(ClipGradValue, IsPythons) {
  const auto parameters = clip_parameters();
  clip_grad_value_(parameters, std::stod(clip_file().metadata.at("value")));
  expect_gradients(parameters, "value");
}

TEST(ClipGrad, TakesParametersWithoutAGradientAndEmptyGradients) {
  const auto none = torch::zeros({2}, torch::requires_grad());
  EXPECT_EQ(clip_grad_norm_({}, 1.0).item<float>(), 0.0F);
  EXPECT_EQ(clip_grad_norm_({none}, 1.0).item<float>(), 0.0F);
  clip_grad_value_({none}, 1.0);
  EXPECT_FALSE(none.grad().defined());
  const auto some = parameter_with(torch::tensor({3.0, 4.0}));
  EXPECT_FLOAT_EQ(clip_grad_norm_({none, some}, 1.0).item<float>(), 5.0F);
  EXPECT_NEAR(some.grad().norm().item<double>(), 1.0, 1e-6);
  for (const double type : {1.0, 2.0, std::numeric_limits<double>::infinity()}) {
    const auto empty = parameter_with(torch::zeros({0, 2}));
    EXPECT_EQ(clip_grad_norm_({empty}, 1.0, type).item<float>(), 0.0F);
    const auto four = parameter_with(torch::tensor({4.0F}));
    EXPECT_EQ(clip_grad_norm_({empty, four}, 8.0, type).item<float>(), 4.0F);
  }
}

TEST(ClipGrad, CountsAGradientThatIsListedTwiceOnce) {
  const auto tied = parameter_with(torch::tensor({3.0F, 4.0F}));
  EXPECT_EQ(clip_grad_norm_({tied, tied}, 10.0).item<float>(), 5.0F);
  clip_grad_norm_({tied, tied}, 2.5);
  EXPECT_LE((tied.grad() - torch::tensor({1.5F, 2.0F})).abs().max().item<float>(), 1e-5F);
}

TEST(ClipGrad, RefusesNegativeBounds) {
  for (const double bound : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_ERROR(clip_grad_norm_({}, bound), UsageError, "max_norm");
    EXPECT_ERROR(clip_grad_value_({}, bound), UsageError, "clip_value");
  }
}

}  // namespace
}  // namespace ladder
