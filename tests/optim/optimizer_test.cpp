// SPDX-License-Identifier: Apache-2.0
#include <ATen/Version.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ladder/amp/grad_scaler.h"
#include "ladder/checkpoint/safetensors.h"
#include "ladder/core/error.h"
#include "ladder/nn/model.h"
#include "ladder/nn/state_dict.h"
#include "ladder/optim/clip_grad.h"
#include "mnist/networks.h"
#include "tests/optim/ways.h"
#include "tests/support/expect_error.h"
#include "tests/support/operator_calls.h"
#include "tests/support/relative_difference.h"

namespace ladder {
namespace {

using Tensors = std::vector<torch::Tensor>;

torch::Tensor parameter(double value) { return torch::full({2}, value, torch::requires_grad()); }

void set_gradient(torch::Tensor& parameter, double value) {
  parameter.mutable_grad() = torch::full_like(parameter.detach(), value);
}

struct Named : torch::nn::Module {
  explicit Named(const Tensors& parameters) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      register_parameter("param" + std::to_string(i), parameters[i]);
    }
  }
};

const SafetensorsFile& golden() {
  static const SafetensorsFile file =
      load_safetensors(LADDER_SOURCE_DIR "/tests/golden/optimizers.safetensors");
  return file;
}

constexpr std::size_t kTensors = 3;

Tensors golden_parameters() {
  Tensors parameters;
  for (std::size_t i = 0; i < kTensors; ++i) {
    parameters.push_back(
        golden().tensors.at("initial" + std::to_string(i)).clone().requires_grad_());
  }
  return parameters;
}

// In one group or two, of which the second has the last parameter.
template <typename Optimizer, typename Options>
OptimizerPointer make_default(const Tensors& parameters, bool two_groups) {
  if (!two_groups) return std::make_unique<Optimizer>(parameters, Options{});
  auto optimizer =
      std::make_unique<Optimizer>(Tensors(parameters.begin(), parameters.end() - 1), Options{});
  optimizer->add_param_group(parameter_group({parameters.back()}, Options{}));
  return optimizer;
}

OptimizerPointer default_optimizer(const std::string& name, const Tensors& parameters, bool two) {
  if (name.starts_with("adamw")) return make_default<AdamW, AdamWOptions>(parameters, two);
  if (name.starts_with("adam_")) return make_default<Adam, AdamOptions>(parameters, two);
  if (name.starts_with("adagrad")) return make_default<Adagrad, AdagradOptions>(parameters, two);
  if (name.starts_with("rmsprop")) return make_default<RMSprop, RMSpropOptions>(parameters, two);
  return make_default<SGD, SgdOptions>(parameters, two);
}

// With the options of the file, and those of `second` in a second group; null = one group.
OptimizerPointer golden_optimizer(const std::string& name, const Tensors& parameters,
                                  const nlohmann::json& second = nullptr) {
  auto optimizer = default_optimizer(name, parameters, !second.is_null());
  const Named module(parameters);
  auto state = optimizer->state_dict(module);
  for (auto& group : state.groups) group.update(nlohmann::json::parse(golden().metadata.at(name)));
  if (!second.is_null()) state.groups[1].update(second);
  optimizer->load_state_dict(module, std::move(state), name);
  return optimizer;
}

// The optimizers of the file.
std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& [name, text] : golden().metadata) {
    if (name != "torch" && name != "scaling" && name != "second_group") names.push_back(name);
  }
  return names;
}

void set_golden_gradients(const Tensors& parameters, int step, double scale = 1.0) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& gradients = golden().tensors.at("gradients" + std::to_string(i));
    parameters[i].mutable_grad() = gradients[step - 1] * scale;
  }
}

// Is there an answer in the file? Then `value` must be it.
int expect_equal(const torch::Tensor& value, const std::string& key) {
  const auto found = golden().tensors.find(key);
  if (found == golden().tensors.end()) return 0;
  if (key.starts_with("rmsprop")) {  // MKL's square root has other last bits on other CPUs
    EXPECT_LE(relative_difference(value, found->second), 1e-6) << key;
  } else {
    EXPECT_TRUE(torch::equal(value, found->second)) << key;
  }
  return 1;
}

void take_golden_steps(const Tensors& parameters, torch::optim::Optimizer& optimizer,
                       const std::function<void(int step)>& after_step = {}) {
  for (int step = 1; step <= 10; ++step) {
    set_golden_gradients(parameters, step);
    optimizer.step();
    if (after_step) after_step(step);
  }
}

// Ten steps with the gradients of the file, compared where the file has an answer.
TEST(Optimizers, AreBitEqualToPythonsAndSoIsTheirState) {
  ASSERT_EQ(at::get_cpu_capability(), "DEFAULT")
      << "the golden numbers are those of the plain kernels: set ATEN_CPU_CAPABILITY=default";
  ASSERT_GE(golden_names().size(), 16U);
  int states = 0;
  for (const auto& name : golden_names()) {
    const auto parameters = golden_parameters();
    const auto optimizer = golden_optimizer(name, parameters);
    int compared = 0;
    take_golden_steps(parameters, *optimizer, [&](int step) {
      for (std::size_t i = 0; i < kTensors; ++i) {
        compared += expect_equal(parameters[i], fmt::format("{}.step{}.param{}", name, step, i));
      }
    });
    EXPECT_EQ(compared, 3 * kTensors) << name;
    for (const auto& [key, tensor] : optimizer->state_dict(Named(parameters)).tensors) {
      const auto number = key.substr(5, 1);  // of param0.sum
      states += expect_equal(tensor, name + ".step10." + key.substr(7) + number);
    }
  }
  EXPECT_EQ(states, 3 * (5 * 2 + 3 + 2 + 1 + 2 + 2 + 3)) << "of three parameters";
}

TEST(Optimizers, StepEachParameterGroupByItsOwnOptions) {
  const auto second = nlohmann::json::parse(golden().metadata.at("second_group"));
  int compared = 0;
  for (const auto& name : golden_names()) {
    const auto parameters = golden_parameters();
    take_golden_steps(parameters, *golden_optimizer(name, parameters, second));
    for (std::size_t i = 0; i < kTensors; ++i) {
      compared += expect_equal(parameters[i], fmt::format("{}.groups.step10.param{}", name, i));
    }
  }
  EXPECT_EQ(compared, 5 * kTensors) << "five kinds of optimizers";
}

// --- steps with gradients that a GradScaler has made larger -----------------------------

// Ten steps with gradients that were multiplied; at some of them one is said to be inf or NaN.
TEST(Optimizers, TakeScaledStepsBitEqualToPythons) {
  ASSERT_EQ(at::get_cpu_capability(), "DEFAULT")
      << "the golden numbers are those of the plain kernels: set ATEN_CPU_CAPABILITY=default";
  const auto scaling = nlohmann::json::parse(golden().metadata.at("scaling"));
  const auto scale = scaling.at("grad_scale").get<float>();
  const auto skipped = scaling.at("skipped_steps").get<std::set<int>>();
  for (const auto& name : golden_names()) {
    const auto parameters = golden_parameters();
    const auto optimizer = golden_optimizer(name, parameters);
    for (int step = 1; step <= 10; ++step) {
      set_golden_gradients(parameters, step, scale);
      const float found_inf = skipped.contains(step) ? 1.0F : 0.0F;
      optimizer->step_scaled(
          {.grad_scale = torch::tensor(scale), .found_inf = torch::tensor(found_inf)});
    }
    for (std::size_t i = 0; i < kTensors; ++i) {
      const auto key = fmt::format("{}.scaled.step10.param{}", name, i);
      EXPECT_EQ(expect_equal(parameters[i], key), 1) << key;
    }
  }
}

// Optimizers of every kind at a learning rate of 0.1.
enum class Kind { kAdamW, kSgd, kNesterov, kAdam, kAdagrad, kRMSprop, kRMSpropOfAll };

class AnyOptimizer : public testing::TestWithParam<Kind> {
 protected:
  static OptimizerPointer make(const Tensors& parameters) {
    switch (GetParam()) {
      case Kind::kAdamW:
        return std::make_unique<AdamW>(parameters, AdamWOptions{.lr = 0.1});
      case Kind::kSgd:
        return std::make_unique<SGD>(parameters, SgdOptions{.lr = 0.1});
      case Kind::kNesterov:
        return std::make_unique<SGD>(parameters,
                                     SgdOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true});
      case Kind::kAdam:
        return std::make_unique<Adam>(parameters, AdamOptions{.lr = 0.1});
      case Kind::kAdagrad:
        return std::make_unique<Adagrad>(parameters, AdagradOptions{.lr = 0.1});
      case Kind::kRMSprop:
        return std::make_unique<RMSprop>(parameters, RMSpropOptions{.lr = 0.1});
      case Kind::kRMSpropOfAll:
        return std::make_unique<RMSprop>(
            parameters, RMSpropOptions{.lr = 0.1, .momentum = 0.9, .centered = true});
    }
    return nullptr;
  }

  // The others step by kernels of LibTorch for one device.
  static bool is_rmsprop() { return GetParam() >= Kind::kRMSprop; }
};
INSTANTIATE_TEST_SUITE_P(Kinds, AnyOptimizer,
                         testing::Values(Kind::kAdamW, Kind::kSgd, Kind::kNesterov, Kind::kAdam,
                                         Kind::kAdagrad, Kind::kRMSprop, Kind::kRMSpropOfAll));

GradScaling scaling(std::optional<float> grad_scale, std::optional<float> found_inf) {
  GradScaling scaling;
  if (grad_scale) scaling.grad_scale = torch::tensor(*grad_scale);
  if (found_inf) scaling.found_inf = torch::tensor(*found_inf);
  return scaling;
}

TEST_P(AnyOptimizer, LeavesTheGradientsDividedAfterAScaledStep) {
  auto weight = parameter(1.0);
  auto plain = parameter(1.0);
  const auto optimizer = make({weight});
  const auto of_plain = make({plain});
  set_gradient(weight, 3.0);
  set_gradient(plain, is_rmsprop() ? 3.0F * (1.0F / 7.0F) : 3.0F / 7.0F);
  optimizer->step_scaled(scaling(7.0F, 0.0F));
  of_plain->step();
  EXPECT_TRUE(torch::equal(weight.grad(), plain.grad()));
  EXPECT_TRUE(torch::equal(weight, plain));
}

TEST_P(AnyOptimizer, TakesOneOfTheTwoNumbersAlone) {
  auto divided = parameter(1.0);
  auto checked = parameter(1.0);
  set_gradient(divided, 2.0);
  set_gradient(checked, 1.0);
  make({divided})->step_scaled(scaling(2.0F, std::nullopt));
  make({checked})->step_scaled(scaling(std::nullopt, 0.0F));
  EXPECT_TRUE(torch::equal(divided, checked));
  EXPECT_FALSE(torch::equal(divided, torch::ones({2})));
}

// Not even a trace of it: the steps before and after are those of a run without it. AdamW would
// show it in its count of steps, momentum in its first buffer.
TEST_P(AnyOptimizer, ChangesNothingWhenAGradientIsNotFinite) {
  for (const int skipped_step : {0, 1, 2}) {
    auto weight = parameter(1.0);
    auto plain = parameter(1.0);
    const auto optimizer = make({weight});
    const auto of_plain = make({plain});
    for (int step = 0; step < 4; ++step) {
      if (step == skipped_step) {
        set_gradient(weight, std::nan(""));
        optimizer->step_scaled(scaling(std::nullopt, 1.0F));
        optimizer->step_scaled(scaling(std::nullopt, 1.0F));
        EXPECT_TRUE(torch::equal(weight, plain));
      }
      set_gradient(weight, 0.25 * step - 0.4);
      set_gradient(plain, 0.25 * step - 0.4);
      optimizer->step();
      of_plain->step();
      EXPECT_TRUE(torch::equal(weight, plain)) << "step " << step;
    }
  }
}

// The fused kernels of the CPU read; those of a GPU do not.
TEST_P(AnyOptimizer, ReadsNoValueInAScaledStepWithoutFusedKernels) {
  if (!is_rmsprop()) return;
  auto weight = parameter(1.0);
  const auto optimizer = make({weight});
  const auto both = scaling(7.0F, 0.0F);
  set_gradient(weight, 1.0);
  const OperatorCalls reads(kHostRead);
  optimizer->step_scaled(both);
  EXPECT_EQ(reads.count(), 0);
}

// Its state is as before too, and so is the count of steps.
TEST(RMSprop, ASkippedStepLeavesTheStateOfTheStepBefore) {
  auto weight = parameter(1.0);
  RMSprop optimizer({weight}, {.lr = 0.1, .momentum = 0.9, .centered = true});
  set_gradient(weight, 0.5);
  optimizer.step();
  std::map<std::string, torch::Tensor> before;
  for (const auto& [name, tensor] : optimizer.state_dict(Named({weight})).tensors) {
    before[name] = tensor.clone();
  }
  EXPECT_EQ(before.size(), 4U);
  set_gradient(weight, std::nan(""));
  optimizer.step_scaled(scaling(std::nullopt, 1.0F));
  for (const auto& [name, tensor] : optimizer.state_dict(Named({weight})).tensors) {
    EXPECT_TRUE(torch::equal(tensor, before.at(name))) << name;
  }
}

// Python leaves the buffer as it finds the memory then.
TEST(Sgd, MomentumStartsWithTheFirstStepThatIsTaken) {
  auto weight = parameter(0.0);
  SGD optimizer({weight}, {.lr = 1.0, .momentum = 0.5, .dampening = 0.5});
  set_gradient(weight, std::nan(""));
  optimizer.step_scaled(scaling(std::nullopt, 1.0F));
  EXPECT_TRUE(optimizer.state().empty());
  set_gradient(weight, 2.0);
  optimizer.step_scaled(scaling(2.0F, 0.0F));
  EXPECT_TRUE(torch::equal(weight, torch::full({2}, -1.0F)));
  set_gradient(weight, 1.0);
  optimizer.step();  // momentum 0.5 · 1 + 0.5 · 1
  EXPECT_TRUE(torch::equal(weight, torch::full({2}, -2.0F)));
}

TEST_P(AnyOptimizer, LeavesAParameterWithoutGradientAlone) {
  auto with = parameter(1.0);
  const auto without = parameter(1.0);
  const auto optimizer = make({without, with});
  optimizer->step();  // nobody has one
  EXPECT_TRUE(torch::equal(with, torch::ones({2})));
  set_gradient(with, 1.0);
  optimizer->step();
  EXPECT_TRUE(torch::equal(without, torch::ones({2})));
  EXPECT_FALSE(torch::equal(with, torch::ones({2})));
}

// LibTorch's parameters() lists tied weights once for each of their names.
TEST_P(AnyOptimizer, StepsAParameterThatIsListedTwiceOnce) {
  auto tied = parameter(1.0);
  auto alone = parameter(1.0);
  const auto of_tied = make({tied, tied});
  const auto of_alone = make({alone});
  for (int step = 0; step < 2; ++step) {
    set_gradient(tied, 0.5);
    set_gradient(alone, 0.5);
    of_tied->step();
    of_alone->step();
    EXPECT_TRUE(torch::equal(tied, alone)) << "step " << step;
  }
}

// A parameter, its gradient and its state with strides of their own: the elements count, not their
// order in memory. The parameter changes its strides after the first step.
TEST_P(AnyOptimizer, TakesGradientsAndStatesOfAnyStrides) {
  const auto gradient = torch::arange(6.0F).view({2, 3}) / 4 - 0.5;
  const auto transposed = gradient.t().contiguous().t();
  auto plain = torch::ones({2, 3}, torch::requires_grad());
  auto other = torch::ones({2, 3}, torch::requires_grad());
  const auto of_plain = make({plain});
  const auto of_other = make({other});
  for (const auto& next : {transposed, gradient, gradient.t().repeat({2, 1}).t().slice(1, 0, 3)}) {
    plain.mutable_grad() = gradient.clone();
    other.mutable_grad() = next;
    of_plain->step_scaled(scaling(2.0F, std::nullopt));
    of_other->step_scaled(scaling(2.0F, std::nullopt));
    EXPECT_TRUE(torch::equal(plain, other)) << "got\n" << other << "\nexpected\n" << plain;
    EXPECT_TRUE(torch::equal(plain.grad(), other.grad()));
    other.set_data(other.detach().t().contiguous().t());
  }
}

// Each parameter has its own count of steps and its own momentum.
TEST_P(AnyOptimizer, StartsAParameterAfreshWhenItsGradientComesLater) {
  auto early = parameter(1.0);
  auto late = parameter(1.0);
  auto alone = parameter(1.0);
  const auto both = make({early, late});
  const auto single = make({alone});
  set_gradient(early, 2.0);
  both->step();
  set_gradient(late, 0.5);
  set_gradient(alone, 0.5);
  for (int step = 0; step < 2; ++step) {
    both->step();
    single->step();
    EXPECT_TRUE(torch::equal(late, alone)) << "step " << step;
  }
  EXPECT_FALSE(torch::equal(early, late));
}

TEST_P(AnyOptimizer, WarnsOnceOfStepsThatSixteenBitsCannotHold) {
  const auto warnings = [](double value, torch::ScalarType dtype, const GradScaling& scaling) {
    auto weight = torch::full({2}, value, dtype).requires_grad_();
    const auto optimizer = make({weight});
    auto& options = optimizer->param_groups().front().options();
    const double rate = options.get_lr();
    testing::internal::CaptureStderr();
    for (int step = 0; step < 10; ++step) {
      options.set_lr(step == 0 ? 0.0 : rate);  // a warm-up
      weight.mutable_grad() = torch::ones_like(weight);
      optimizer->step_scaled(scaling);
    }
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(warnings(30'000.0, torch::kBFloat16, {}),
            "warning: optimizer: step 2 left 100 % of the bfloat16 weights as they were: it is "
            "smaller than their precision; hint: keep the parameters in float32 and compute under "
            "Autocast, or step a float32 copy and copy it to the network\n");
  EXPECT_EQ(warnings(1.0, torch::kBFloat16, {}), "");
  EXPECT_EQ(warnings(30'000.0, torch::kBFloat16, scaling(std::nullopt, 1.0F)), "");
  EXPECT_EQ(warnings(1e9, torch::kFloat32, {}), "");
  if (GetParam() != Kind::kSgd) return;
  EXPECT_EQ(warnings(30'000.0, torch::kHalf, {}).substr(0, 59),
            "warning: optimizer: step 2 left 100 % of the float16 weight");
}

TEST_P(AnyOptimizer, TakesAClosureAndReturnsItsLoss) {
  auto weight = parameter(1.0);
  const auto optimizer = make({weight});
  const auto loss = optimizer->step([&] {
    optimizer->zero_grad();
    auto value = weight.square().sum();
    value.backward();
    return value;
  });
  EXPECT_EQ(loss.item<float>(), 2.0F);  // before the step
  EXPECT_LT(weight[0].item<float>(), 1.0F);
  EXPECT_FALSE(optimizer->step().defined());
}

TEST_P(AnyOptimizer, StepsInPlaceAtTheLearningRateThatWasSetLast) {
  auto weight = parameter(1.0);
  const auto* data = weight.const_data_ptr();
  const auto optimizer = make({weight});
  auto& options = optimizer->param_groups()[0].options();
  EXPECT_EQ(options.get_lr(), 0.1);
  options.set_lr(0.0);
  set_gradient(weight, 1.0);
  optimizer->step();
  EXPECT_TRUE(torch::equal(weight, torch::ones({2})));
  options.set_lr(0.5);
  optimizer->step();
  EXPECT_LT(weight[0].item<float>(), 0.7F);
  EXPECT_EQ(weight.const_data_ptr(), data);
  EXPECT_TRUE(weight.is_leaf() && weight.requires_grad()) << "outside of autograd";
}

TEST_P(AnyOptimizer, EndsEqualWhetherGradientsAreClearedBeforeBackwardOrAfterTheStep) {
  const auto weights_after_three_steps = [&](bool clears_before) {
    torch::manual_seed(3);
    const auto net = mnist::make_conv_net();
    const auto images = torch::rand({6, 1, 28, 28});
    const auto labels = torch::tensor({0, 1, 2, 3, 4, 5}, torch::kInt64);
    const auto optimizer = make(net->parameters());
    for (int step = 0; step < 3; ++step) {
      if (clears_before) optimizer->zero_grad();
      torch::cross_entropy_loss(net->forward(images), labels).backward();
      optimizer->step();
      if (!clears_before) optimizer->zero_grad();
    }
    return weights_sha256(state_dict(*net));
  };
  EXPECT_EQ(weights_after_three_steps(true), weights_after_three_steps(false));
}

constexpr const char* kSparse = ": the gradient of a parameter is sparse; hint: leave sparse(";

// Of an embedding, after a backward.
Tensors parameters_with_a_sparse_gradient() {
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(5, 2).sparse(true));
  embedding->forward(torch::tensor({1, 3})).sum().backward();
  return embedding->parameters();
}

TEST_P(AnyOptimizer, RefusesAStepWithoutParametersAndASparseGradient) {
  EXPECT_ERROR(make({})->step(), UsageError, "optimizer: no parameters; hint: ");
  EXPECT_ERROR(make(parameters_with_a_sparse_gradient())->step(), UsageError, kSparse);
}

TEST(Optimizers, ClippingAndScalingRefuseASparseGradient) {
  const auto parameters = parameters_with_a_sparse_gradient();
  EXPECT_ERROR(clip_grad_norm_(parameters, 1.0), UsageError, kSparse);
  SGD sgd(parameters, {.lr = 0.1});
  GradScaler scaler;
  scaler.scale(torch::ones({}));
  EXPECT_ERROR(scaler.unscale_(sgd), UsageError, kSparse);
}

TEST(Optimizers, RefuseAParameterWithGapsAComplexOneAndOneInTwoGroups) {
  const auto matrix = torch::ones({2, 2});
  EXPECT_ERROR(SGD({matrix.select(1, 0)}, {.lr = 0.1}), UsageError,
               "optimizer: a parameter, Float [2], shares its memory or has gaps; hint: ");
  EXPECT_ERROR(
      SGD({torch::ones({2}, torch::kComplexFloat)}, {.lr = 0.1}), UsageError,
      "optimizer: a parameter, ComplexFloat [2], is complex; hint: register torch::view_as_real");
  const auto shared = parameter(1.0);
  SGD sgd({parameter(1.0), shared}, {.lr = 0.1});
  EXPECT_ERROR(sgd.add_param_group(parameter_group({shared}, SgdOptions{})), UsageError,
               "optimizer: a parameter, Float [2], is in two groups; hint: ");
  EXPECT_EQ(sgd.param_groups().size(), 1U);
}

TEST(Optimizers, RefuseOptionsOutsideTheirRange) {
  const Tensors w = {parameter(1.0)};
  EXPECT_ERROR(AdamW(w, {.lr = -1.0}), UsageError, "AdamW lr: expected a value >= 0, got -1");
  EXPECT_ERROR(AdamW(w, {.lr = std::nan("")}), UsageError, "AdamW lr: expected a value >= 0, got");
  EXPECT_ERROR(AdamW(w, {.beta1 = 1.0}), UsageError, "AdamW beta1: expected 0 <= beta < 1, got 1");
  EXPECT_ERROR(AdamW(w, {.beta2 = -0.1}), UsageError, "AdamW beta2: expected 0 <= beta < 1, got -");
  EXPECT_ERROR(AdamW(w, {.eps = -1e-8}), UsageError, "AdamW eps: expected a value >= 0");
  EXPECT_ERROR(AdamW(w, {.weight_decay = -0.5}), UsageError, "AdamW weight_decay: expected a val");
  EXPECT_ERROR(Adam(w, {.lr = -1.0}), UsageError, "Adam lr: expected a value >= 0, got -1");
  EXPECT_ERROR(Adam(w, {.beta1 = 1.0}), UsageError, "Adam beta1: expected 0 <= beta < 1, got 1");
  EXPECT_ERROR(Adagrad(w, {.lr = -1.0}), UsageError, "Adagrad lr: expected a value >= 0");
  EXPECT_ERROR(Adagrad(w, {.lr_decay = -1.0}), UsageError, "Adagrad lr_decay: expected a");
  EXPECT_ERROR(Adagrad(w, {.weight_decay = -1.0}), UsageError, "Adagrad weight_decay: expected");
  EXPECT_ERROR(Adagrad(w, {.initial_accumulator_value = -1.0}), UsageError,
               "Adagrad initial_accumulator_value: expected a value >= 0, got -1");
  EXPECT_ERROR(Adagrad(w, {.eps = -1.0}), UsageError, "Adagrad eps: expected a value >= 0");
  EXPECT_ERROR(RMSprop(w, {.lr = -1.0}), UsageError, "RMSprop lr: expected a value >= 0");
  EXPECT_ERROR(RMSprop(w, {.alpha = -1.0}), UsageError, "RMSprop alpha: expected a value");
  EXPECT_ERROR(RMSprop(w, {.eps = -1.0}), UsageError, "RMSprop eps: expected a value >= 0");
  EXPECT_ERROR(RMSprop(w, {.weight_decay = -1.0}), UsageError, "RMSprop weight_decay: expected");
  EXPECT_ERROR(RMSprop(w, {.momentum = -1.0}), UsageError, "RMSprop momentum: expected a value");
  EXPECT_ERROR(SGD(w, {.lr = -1.0}), UsageError, "SGD lr: expected a value >= 0, got -1");
  EXPECT_ERROR(SGD(w, {.momentum = -0.5}), UsageError, "SGD momentum: expected a value >= 0, got");
  EXPECT_ERROR(SGD(w, {.weight_decay = -0.5}), UsageError, "SGD weight_decay: expected a value");
  const char* nesterov = "SGD nesterov: needs momentum > 0 and dampening 0; hint: set both";
  EXPECT_ERROR(SGD(w, {.nesterov = true}), UsageError, nesterov);
  EXPECT_ERROR(SGD(w, {.momentum = 0.9, .dampening = 0.1, .nesterov = true}), UsageError, nesterov);
}

// Their fields would be read as those of this optimizer.
TEST(Optimizers, RefuseAGroupWithTheOptionsOfAnother) {
  AdamW adamw({parameter(1.0)}, {});
  constexpr const char* kMessage = "a parameter group with the options of another class";
  EXPECT_ERROR(adamw.add_param_group(parameter_group({parameter(1.0)}, SgdOptions{})), UsageError,
               kMessage);
  EXPECT_ERROR(
      adamw.add_param_group({{parameter(1.0)}, std::make_unique<torch::optim::AdamWOptions>(0.1)}),
      UsageError, kMessage);
  EXPECT_EQ(adamw.param_groups().size(), 1U);
}

}  // namespace
}  // namespace ladder
