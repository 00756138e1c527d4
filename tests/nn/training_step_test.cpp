// SPDX-License-Identifier: Apache-2.0
// One step of training in fast math against the same step in the plain operations of LibTorch.
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <memory>
#include <string>

#include "ladder/checkpoint/state_dict.h"
#include "ladder/nn/dropout.h"
#include "ladder/nn/random_scope.h"
#include "tests/support/training.h"

namespace ladder {
namespace {

constexpr double kOtherOrder = 1e-5;  // of sums, and of the kernels of another layout

// Not seed 1: in it two pixels of a window are equal up to rounding, and which of them is the
// largest, and gets the gradient, is different.
Batch images() { return random_batch(32, 2); }

// BasicNet as PyTorch's example writes it, in NCHW, with the masks that fast math draws.
torch::Tensor plain_basicnet(const Model& model, const Batch& batch) {
  const auto parameters = model.named_parameters();
  const auto weight = [&](const char* layer) { return parameters[layer + std::string(".weight")]; };
  const auto bias = [&](const char* layer) { return parameters[layer + std::string(".bias")]; };
  const RandomKey key{basicnet().seed(), batch.epoch, batch.positions};
  auto x = torch::relu(torch::conv2d(batch.images, weight("conv1"), bias("conv1")));
  x = torch::relu(torch::conv2d(x, weight("conv2"), bias("conv2")));
  x = torch::max_pool2d(x, 2);
  x = torch::flatten(x * counter_mask(x.detach(), key, {.p = 0.25, .layer = 1}), 1);
  x = torch::relu(torch::linear(x, weight("fc1"), bias("fc1")));
  x = x * counter_mask(x.detach(), key, {.p = 0.5, .layer = 2});
  return torch::log_softmax(torch::linear(x, weight("fc2"), bias("fc2")), 1);
}

// ConvNet in reference math is plain; BasicNet's dropout draws other numbers there.
torch::Tensor plain_output(Model& model, const Recipe& recipe, const Batch& batch) {
  return recipe.name() == "basicnet" ? plain_basicnet(model, batch) : model.forward(batch.images);
}

class TrainingStep : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Networks, TrainingStep, testing::Values("basicnet", "convnet"));

TEST_P(TrainingStep, InFastMathIsThatOfThePlainOperations) {
  const Recipe recipe({.name = GetParam()});
  const Recipe reference({.name = GetParam(), .math = Math::kReference});
  const auto fast = first_model(recipe);
  const auto plain = first_model(reference);
  const auto before = flat_weights(*plain);
  const auto fast_optimizer = recipe.make_optimizer(fast->parameters());
  const auto plain_optimizer = recipe.make_optimizer(plain->parameters());
  const Batch batch = images();

  run_backward(*fast, recipe, batch);
  const auto loss = recipe.loss(plain_output(*plain, recipe, batch), batch);
  loss.backward();
  EXPECT_LT(relative_difference(flat_gradients(*fast), flat_gradients(*plain)), kOtherOrder);

  fast_optimizer->step();
  plain_optimizer->step();
  EXPECT_FALSE(torch::equal(flat_weights(*plain), before));
  const StateDict wanted = state_dict(*plain);
  for (const auto& [name, tensor] : state_dict(*fast)) {
    EXPECT_LT(relative_difference(tensor, wanted.at(name)), kOtherOrder) << name;
  }
}

TEST_P(TrainingStep, HasTheLossOfThePlainOperations) {
  const Recipe recipe({.name = GetParam()});
  const Recipe reference({.name = GetParam(), .math = Math::kReference});
  const Batch batch = images();
  const auto fast = loss_of(*first_model(recipe), recipe, batch);
  const auto plain = recipe.loss(plain_output(*first_model(reference), recipe, batch), batch);
  EXPECT_LT(relative_difference(fast.detach(), plain.detach()), kOtherOrder);
}

}  // namespace
}  // namespace ladder
