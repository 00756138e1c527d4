// SPDX-License-Identifier: Apache-2.0
#include <ATen/Version.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ladder/checkpoint/safetensors.h"
#include "ladder/core/error.h"
#include "ladder/nn/dropout.h"
#include "ladder/nn/model.h"
#include "ladder/nn/random_scope.h"
#include "ladder/nn/state_dict.h"
#include "mnist/networks.h"
#include "tests/support/expect_error.h"
#include "tests/support/relative_difference.h"

namespace mnist {
namespace {

using namespace ladder;

using Names = std::vector<std::string>;

constexpr auto kChannelsLast = torch::MemoryFormat::ChannelsLast;

// How a test makes a network.
struct Case {
  std::string name;
  std::function<std::shared_ptr<Model>(Math)> make;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"basicnet", [](Math math) { return make_basic_net({.math = math}); }},
      {"convnet", [](Math math) { return make_conv_net({.head = Head::kLogits, .math = math}); }},
      {"stack", [](Math math) { return make_stack_net({.math = math}); }}};
  return all;
}

std::shared_ptr<Model> made(const Case& network, Math math) {
  torch::manual_seed(42);
  return network.make(math);
}

const SafetensorsFile& golden() {
  static const SafetensorsFile file =
      load_safetensors(LADDER_SOURCE_DIR "/tests/golden/models.safetensors");
  return file;
}

void expect_parameters(const Model& model, std::int64_t count, std::size_t buffers,
                       const Names& layers) {
  std::int64_t values = 0;
  Names names;
  for (const auto& item : model.named_parameters()) {
    values += item.value().numel();
    names.push_back(item.key());
  }
  Names expected;
  for (const auto& layer : layers) {
    expected.insert(expected.end(), {layer + ".weight", layer + ".bias"});
  }
  EXPECT_EQ(names, expected);
  EXPECT_EQ(values, count);
  EXPECT_EQ(model.buffers().size(), buffers);
}

TEST(Networks, HavePythonsParametersInItsOrder) {
  expect_parameters(*make_basic_net(), 1199882, 0, {"conv1", "conv2", "fc1", "fc2"});
  expect_parameters(*make_conv_net(), 29034, 6,
                    {"layer1.0", "layer1.1", "layer2.0", "layer2.1", "fc"});
  expect_parameters(
      *make_stack_net({.depth = 2}), 200'960 + 2 * 525'568 + 2'570, 0,
      {"input", "layers.0.up", "layers.0.down", "layers.1.up", "layers.1.down", "head"});
}

TEST(Networks, StartWithPythonsWeights) {
  ASSERT_EQ(at::get_cpu_capability(), "DEFAULT")
      << "the golden numbers are those of the plain kernels: set ATEN_CPU_CAPABILITY=default";
  for (const Case& network : cases()) {
    for (const Math math : {Math::kFast, Math::kReference}) {
      EXPECT_EQ(weights_sha256(state_dict(*made(network, math))),
                golden().metadata.at(network.name + ".weights_sha256"));
    }
  }
}

// oneDNN chooses its kernels by the CPU, and they sum in orders of their own: a few last bits.
constexpr double kOtherKernels = 1e-5;

torch::Tensor golden_loss(const Case& network, const torch::Tensor& output) {
  const auto& labels = golden().tensors.at(network.name + ".labels");
  return network.name == "convnet" ? torch::cross_entropy_loss(output, labels)
                                   : torch::nll_loss(output, labels);
}

TEST(Networks, ComputeWhatPythonComputes) {
  ASSERT_EQ(at::get_cpu_capability(), "DEFAULT")
      << "the golden numbers are those of the plain kernels: set ATEN_CPU_CAPABILITY=default";
  for (const Case& network : cases()) {
    for (const Math math : {Math::kFast, Math::kReference}) {
      SCOPED_TRACE(network.name + (math == Math::kFast ? " fast" : " reference"));
      const auto wanted = [&](const std::string& name) {
        return golden().tensors.at(network.name + "." + name);
      };
      const auto model = made(network, math);
      model->eval();
      const auto output = model->forward(wanted("input"));
      EXPECT_LT(relative_difference(output, wanted("output")), kOtherKernels);
      const auto loss = golden_loss(network, output);
      EXPECT_LT(relative_difference(loss, wanted("loss")), kOtherKernels);
      loss.backward();
      for (const auto& item : model->named_parameters()) {
        const auto norm = item.value().grad().to(torch::kFloat64).norm();
        EXPECT_LT(relative_difference(norm, wanted("gradient_norm." + item.key())), kOtherKernels)
            << item.key();
      }
    }
  }
}

TEST(Networks, TheHeadDecidesWhetherTheOutputIsNormalised) {
  const auto images = torch::rand({3, 1, 28, 28});
  torch::manual_seed(1);
  const auto logits = make_basic_net({.head = Head::kLogits});
  torch::manual_seed(1);
  const auto log_softmax = make_basic_net({.head = Head::kLogSoftmax});
  logits->eval();
  log_softmax->eval();
  EXPECT_TRUE(
      torch::equal(torch::log_softmax(logits->forward(images), 1), log_softmax->forward(images)));
  const auto convnet = make_conv_net({.head = Head::kLogSoftmax});
  const auto sums = convnet->forward(images).exp().sum(1);
  EXPECT_TRUE(torch::allclose(sums, torch::ones({3})));  // probabilities, up to rounding
}

TEST(Networks, TakeAnEmptyBatch) {
  for (const Case& network : cases()) {
    for (const Math math : {Math::kFast, Math::kReference}) {
      const auto model = made(network, math);
      model->eval();
      EXPECT_EQ(model->forward(torch::empty({0, 1, 28, 28})).sizes(),
                (std::vector<std::int64_t>{0, 10}));
    }
  }
}

TEST(BasicNet, TrainsInFastMathOnlyInsideARandomScope) {
  const auto net = make_basic_net();
  const auto images = torch::rand({2, 1, 28, 28});
  EXPECT_ERROR(net->forward(images), UsageError, "expected a RandomScope around the forward");
  const RandomScope random({.seed = 1, .positions = torch::arange(2)});
  EXPECT_TRUE(torch::equal(net->forward(images), net->forward(images)));
}

// From one stream, what is dropped with 0.25 would be a part of what is dropped with 0.5.
TEST(BasicNet, TheTwoDropoutLayersHaveStreamsOfTheirOwn) {
  const auto net = make_basic_net();
  const RandomScope random({.seed = 1, .positions = torch::arange(4)});
  const auto children = net->named_children();
  const auto ones = torch::ones({4, 500});
  const auto dropped1 = children["dropout1"]->as<Dropout>()->forward(ones).eq(0);
  const auto kept2 = children["dropout2"]->as<Dropout>()->forward(ones).ne(0);
  EXPECT_TRUE(dropped1.logical_and(kept2).any().item<bool>());
}

// A convolution runs in the layout of its weights.
TEST(Networks, RunInChannelsLastInFastMathAndInNchwInReferenceMath) {
  for (const Case& network : cases()) {
    for (const Math math : {Math::kFast, Math::kReference}) {
      for (const auto& weight : made(network, math)->parameters()) {
        if (weight.dim() != 4 || weight.size(1) == 1) continue;
        EXPECT_EQ(weight.is_contiguous(kChannelsLast), math == Math::kFast) << network.name;
        EXPECT_EQ(weight.is_contiguous(), math == Math::kReference) << network.name;
      }
    }
  }
}

void expect_equal_with_own_storage(const torch::nn::Module& copy, const torch::nn::Module& model) {
  const StateDict wanted = state_dict(model);
  const StateDict got = state_dict(copy);
  ASSERT_EQ(got.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) {
    EXPECT_TRUE(torch::equal(got.at(name), tensor)) << name;
    EXPECT_EQ(got.at(name).strides(), tensor.strides()) << name;
    EXPECT_NE(got.at(name).const_data_ptr(), tensor.const_data_ptr()) << name;
  }
}

TEST(NewLike, CopiesValuesAndModeIntoTensorsOfItsOwnAndDrawsNothing) {
  const auto images = torch::rand({4, 1, 28, 28});
  for (const Case& network : cases()) {
    for (const Math math : {Math::kFast, Math::kReference}) {
      const auto model = made(network, math);
      const RandomScope random({.seed = 1, .positions = torch::arange(4)});
      model->forward(images);  // moves the running statistics
      torch::manual_seed(7);
      const auto next = torch::rand({4});
      torch::manual_seed(7);
      const auto copy = model->new_like();
      EXPECT_TRUE(torch::equal(torch::rand({4}), next));
      EXPECT_TRUE(copy->is_training());
      expect_equal_with_own_storage(*copy, *model);
      model->eval();
      const auto evaluating = model->new_like();
      for (const auto& child : evaluating->modules()) EXPECT_FALSE(child->is_training());
      EXPECT_TRUE(torch::equal(evaluating->forward(images), model->forward(images)));
    }
  }
  const auto logits = make_basic_net({.head = Head::kLogits});  // not its default
  logits->eval();
  EXPECT_TRUE(torch::equal(logits->new_like()->forward(images), logits->forward(images)));
}

TEST(NewLike, StaysOnTheGpu) {
  if (!torch::hasCUDA()) GTEST_SKIP() << "skipped: no GPU";
  const auto net = make_conv_net();
  net->to(torch::kCUDA);
  expect_equal_with_own_storage(*net->new_like(), *net);
  EXPECT_TRUE(net->new_like()->parameters().front().is_cuda());
}

TEST(CopyValues, RefusesAModuleOfAnotherKind) {
  const auto source = make_basic_net();
  const auto target = make_conv_net();
  EXPECT_ERROR(copy_values(*source, *target), c10::Error,
               "copy_values: expected 10 tensors, got 8");
}

}  // namespace
}  // namespace mnist
