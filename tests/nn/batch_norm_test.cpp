// SPDX-License-Identifier: Apache-2.0
#include "ladder/nn/batch_norm.h"

#include <ATen/Version.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <optional>
#include <string>
#include <vector>

#include "ladder/checkpoint/safetensors.h"
#include "ladder/core/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/operator_calls.h"

namespace ladder {
namespace {

using Momentum = std::optional<double>;

const std::vector<Momentum> kMomenta = {0.1, std::nullopt};

// One of ours and one of LibTorch's, with equal weights that are not all one.
struct Pair {
  explicit Pair(Momentum momentum)
      : ours(BatchNormOptions{.features = 3, .momentum = momentum}),
        theirs(torch::nn::BatchNorm2dOptions(3).momentum(momentum)) {
    const torch::NoGradGuard no_grad;
    const auto weight = torch::rand({3});
    const auto bias = torch::randn({3});
    ours->weight.copy_(weight);
    ours->bias.copy_(bias);
    theirs->weight.copy_(weight);
    theirs->bias.copy_(bias);
  }

  void expect_equal_outputs(const torch::Tensor& input) {
    const auto output = ours->forward(input);
    const auto expected = theirs->forward(input);
    EXPECT_TRUE(torch::equal(output, expected));
    EXPECT_EQ(output.strides(), expected.strides());
  }

  void expect_equal_state() {
    EXPECT_TRUE(torch::equal(ours->running_mean, theirs->running_mean));
    EXPECT_TRUE(torch::equal(ours->running_var, theirs->running_var));
    EXPECT_TRUE(torch::equal(ours->num_batches_tracked, theirs->num_batches_tracked));
  }

  BatchNorm ours;
  torch::nn::BatchNorm2d theirs;
};

TEST(BatchNorm, IsBitEqualToLibTorchsInTrainingAndEvaluation) {
  for (const Momentum momentum : kMomenta) {
    torch::manual_seed(1);
    Pair pair(momentum);
    for (int step = 0; step < 3; ++step) {
      const auto input = torch::randn({4, 3, 5, 5}) * 2 + 1;
      pair.expect_equal_outputs(input);
      pair.expect_equal_outputs(input.contiguous(torch::MemoryFormat::ChannelsLast));
      pair.expect_equal_state();
    }
    EXPECT_EQ(pair.ours->num_batches_tracked.item<std::int64_t>(), 6);
    pair.ours->eval();
    pair.theirs->eval();
    pair.expect_equal_outputs(torch::randn({4, 3, 5, 5}));
    pair.expect_equal_state();
  }
}

// What Python made, under "momentum_0.1." and "momentum_none.".
struct Golden {
  torch::Tensor given(const std::string& name) const { return file.tensors.at(name); }
  torch::Tensor wanted(const std::string& name) const { return file.tensors.at(prefix + name); }

  SafetensorsFile file = load_safetensors(LADDER_SOURCE_DIR "/tests/golden/batch_norm.safetensors");
  std::string prefix;
};

void expect_step(const Golden& golden, const BatchNorm& layer, const torch::Tensor& input,
                 const torch::Tensor& output, const std::string& step) {
  const auto check = [&](const std::string& name, const torch::Tensor& got) {
    EXPECT_TRUE(torch::equal(got, golden.wanted(step + name))) << golden.prefix << step << name;
  };
  check("output", output);
  check("running_mean", layer->running_mean);
  check("running_var", layer->running_var);
  check("num_batches_tracked", layer->num_batches_tracked);
  check("input_gradient", input.grad());
  check("weight_gradient", layer->weight.grad());
  check("bias_gradient", layer->bias.grad());
}

BatchNorm layer_of(const Golden& golden, Momentum momentum) {
  const torch::NoGradGuard no_grad;
  BatchNorm layer(BatchNormOptions{.features = 3, .momentum = momentum});
  layer->weight.copy_(golden.given("weight"));
  layer->bias.copy_(golden.given("bias"));
  return layer;
}

TEST(BatchNorm, IsBitEqualToPythons) {
  ASSERT_EQ(at::get_cpu_capability(), "DEFAULT")
      << "the golden numbers are those of the plain kernels: set ATEN_CPU_CAPABILITY=default";
  for (const Momentum momentum : kMomenta) {
    Golden golden;
    golden.prefix = momentum ? "momentum_0.1." : "momentum_none.";
    auto layer = layer_of(golden, momentum);
    for (const std::string step : {"1", "2", "3"}) {
      layer->zero_grad();
      const auto input = golden.given("input" + step).clone().requires_grad_();
      const auto output = layer->forward(input);
      output.backward(golden.given("output_gradient"));
      if (step != "2") expect_step(golden, layer, input, output, "step" + step + ".");
    }
    layer->eval();
    EXPECT_TRUE(torch::equal(layer->forward(golden.given("input1")), golden.wanted("eval_output")));
  }
}

// The weight of a batch is computed where the count is.
TEST(BatchNorm, AveragesWithoutAWaitOnAGpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no GPU";
  Golden golden;
  golden.prefix = "momentum_none.";
  auto here = layer_of(golden, std::nullopt);
  auto there = layer_of(golden, std::nullopt);
  there->to(torch::kCUDA);
  for (const std::string step : {"1", "2", "3"}) {
    const auto input = golden.given("input" + step);
    const auto on_gpu = input.to(torch::kCUDA);
    const OperatorCalls reads(kHostRead);
    const auto output = there->forward(on_gpu);
    EXPECT_EQ(reads.count(), 0);
    EXPECT_TRUE(torch::allclose(output.cpu(), here->forward(input), 1e-4, 1e-5));
    EXPECT_TRUE(torch::allclose(there->running_mean.cpu(), here->running_mean, 1e-4, 1e-5));
    EXPECT_TRUE(torch::allclose(there->running_var.cpu(), here->running_var, 1e-4, 1e-5));
  }
  EXPECT_EQ(there->num_batches_tracked.item<std::int64_t>(), 3);
}

TEST(BatchNorm, RefusesOneValuePerChannelInTrainingAsPython) {
  BatchNorm layer(BatchNormOptions{.features = 3});
  const auto values = torch::ones({1, 3});
  EXPECT_ERROR(layer->forward(values), UsageError, "expected more than one value per channel");
  EXPECT_TRUE(layer->running_var.isfinite().all().item<bool>());
  layer->eval();
  EXPECT_NO_THROW(layer->forward(values));
}

TEST(BatchNorm, HasPythonsNamesAndDtypes) {
  const BatchNorm layer(BatchNormOptions{.features = 3});
  const std::vector<std::string> parameters = {"weight", "bias"};
  const std::vector<std::string> buffers = {"running_mean", "running_var", "num_batches_tracked"};
  EXPECT_EQ(layer->named_parameters().keys(), parameters);
  EXPECT_EQ(layer->named_buffers().keys(), buffers);
  EXPECT_EQ(layer->num_batches_tracked.scalar_type(), torch::kInt64);
  EXPECT_EQ(layer->num_batches_tracked.dim(), 0);
}

}  // namespace
}  // namespace ladder
