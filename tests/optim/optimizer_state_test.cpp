// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/fused_optimizer.h"

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "ladder/checkpoint/safetensors.h"
#include "ladder/core/error.h"
#include "ladder/nn/state_dict.h"
#include "tests/optim/ways.h"
#include "tests/support/expect_error.h"
#include "tests/support/small_modules.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/training.h"

namespace ladder {
namespace {

using Json = nlohmann::json;
using Names = std::vector<std::string>;
using Tensors = std::vector<torch::Tensor>;

// A module with parameters "a" of shape [2, 3] and "b" of shape [4], all ones.
struct Small : IdleModel {
  explicit Small(torch::ScalarType dtype = torch::kFloat32)
      : a(register_parameter("a", torch::ones({2, 3}, dtype))),
        b(register_parameter("b", torch::ones({4}, dtype))) {}

  torch::Tensor a;
  torch::Tensor b;
};

void step_with(FusedOptimizer& optimizer, const Tensors& parameters, double gradient) {
  for (const auto& parameter : parameters) {
    parameter.mutable_grad() = torch::full_like(parameter.detach(), gradient);
  }
  optimizer.step();
}

// A module, an optimizer of it, and two steps behind them.
template <typename Optimizer, typename Options>
struct Used {
  explicit Used(Options options)
      : module(std::make_shared<Small>()), optimizer(module->parameters(), options) {
    step_with(optimizer, module->parameters(), 0.5);
    step_with(optimizer, module->parameters(), -2.0);
  }

  OptimizerState state() const { return optimizer.state_dict(*module); }

  std::shared_ptr<Small> module;
  Optimizer optimizer;
};
using UsedAdamW = Used<AdamW, AdamWOptions>;
using UsedSgd = Used<SGD, SgdOptions>;
using UsedAdam = Used<Adam, AdamOptions>;
using UsedAdagrad = Used<Adagrad, AdagradOptions>;
using UsedRMSprop = Used<RMSprop, RMSpropOptions>;

Names names_of(const StateDict& tensors) {
  Names names;
  for (const auto& item : tensors) names.push_back(item.first);
  return names;
}

OptimizerState copy_of(const OptimizerState& state) {
  OptimizerState copy = state;
  for (auto& [name, tensor] : copy.tensors) tensor = tensor.clone();
  return copy;
}

void expect_equal(const OptimizerState& got, const OptimizerState& expected) {
  EXPECT_EQ(got.groups, expected.groups);
  ASSERT_EQ(names_of(got.tensors), names_of(expected.tensors));
  for (const auto& [name, tensor] : expected.tensors) {
    EXPECT_TRUE(torch::equal(got.tensors.at(name), tensor)) << name;
  }
}

// --- what it is -------------------------------------------------------------------------

// Names of the tensors of `a` and `b`, and the groups, as Python has them.
template <typename AnyUsed>
void expect_form(const AnyUsed& used, const Names& tensors, const std::string& options) {
  const auto state = used.state();
  Names names;
  for (const std::string parameter : {"a.", "b."}) {
    for (const auto& tensor : tensors) names.push_back(parameter + tensor);
  }
  EXPECT_EQ(names_of(state.tensors), names);
  auto group = Json::parse(options);
  group["params"] = {"a", "b"};
  EXPECT_EQ(state.groups.dump(), Json::array({group}).dump());
}

TEST(OptimizerState, HasPythonsNamesAndOptions) {
  const AdamWOptions adamw{.lr = 0.1, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-4, .weight_decay = 0.5};
  const UsedAdamW used(adamw);
  EXPECT_EQ(used.state().tensors.at("a.exp_avg").sizes(), used.module->a.sizes());
  EXPECT_EQ(used.state().tensors.at("b.step").item<float>(), 2.0F);
  expect_form(used, {"exp_avg", "exp_avg_sq", "step"},
              R"({"betas":[0.8,0.9],"eps":0.0001,"lr":0.1,"weight_decay":0.5})");
  expect_form(UsedAdam({.lr = 0.1, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-4, .weight_decay = 0.5}),
              {"exp_avg", "exp_avg_sq", "step"},
              R"({"betas":[0.8,0.9],"decoupled_weight_decay":false,"eps":0.0001,"lr":0.1,)"
              R"("weight_decay":0.5})");
  expect_form(UsedSgd({.lr = 0.1, .momentum = 0.75, .weight_decay = 0.5, .nesterov = true}),
              {"momentum_buffer"},
              R"({"dampening":0.0,"lr":0.1,"momentum":0.75,"nesterov":true,"weight_decay":0.5})");
  EXPECT_TRUE(UsedSgd({.lr = 0.1}).state().tensors.empty());
  const UsedAdagrad adagrad({.lr = 0.1,
                             .lr_decay = 0.25,
                             .weight_decay = 0.5,
                             .initial_accumulator_value = 2.0,
                             .eps = 1e-4});
  EXPECT_GT(adagrad.state().tensors.at("a.sum")[0][0].item<float>(), 2.0F);
  expect_form(adagrad, {"step", "sum"},
              R"({"eps":0.0001,"initial_accumulator_value":2.0,"lr":0.1,"lr_decay":0.25,)"
              R"("weight_decay":0.5})");
  const RMSpropOptions all{.lr = 0.1,
                           .alpha = 0.5,
                           .eps = 1e-4,
                           .weight_decay = 0.25,
                           .momentum = 0.75,
                           .centered = true};
  EXPECT_EQ(UsedRMSprop(all).state().tensors.at("b.step").item<float>(), 2.0F);
  expect_form(UsedRMSprop(all), {"grad_avg", "momentum_buffer", "square_avg", "step"},
              R"({"alpha":0.5,"centered":true,"eps":0.0001,"lr":0.1,"momentum":0.75,)"
              R"("weight_decay":0.25})");
  EXPECT_EQ(names_of(UsedRMSprop({}).state().tensors),
            (Names{"a.square_avg", "a.step", "b.square_avg", "b.step"}));
}

TEST(OptimizerState, DoesNotKnowTheWrappers) {
  const UsedAdamW used({});
  const auto wrapped = std::make_shared<Wrapper>(std::make_shared<Wrapper>(used.module));
  expect_equal(used.optimizer.state_dict(*wrapped), used.state());
  UsedAdamW other({.lr = 0.5});
  other.optimizer.load_state_dict(Wrapper(other.module), used.state(), "a file");
  expect_equal(other.state(), used.state());
}

TEST(OptimizerState, SharesMemoryWithTheOptimizer) {
  UsedAdamW used({});
  const auto state = used.state();
  const auto before = copy_of(state);
  step_with(used.optimizer, used.module->parameters(), 1.0);
  EXPECT_EQ(state.tensors.at("a.step").item<float>(), 3.0F);
  EXPECT_FALSE(torch::equal(state.tensors.at("a.exp_avg"), before.tensors.at("a.exp_avg")));
}

TEST(OptimizerState, HasNothingOfAParameterThatWasNeverMoved) {
  Small module;
  AdamW optimizer(module.parameters());
  EXPECT_TRUE(optimizer.state_dict(module).tensors.empty());
  step_with(optimizer, {module.b}, 1.0);
  EXPECT_EQ(names_of(optimizer.state_dict(module).tensors),
            (Names{"b.exp_avg", "b.exp_avg_sq", "b.step"}));
}

TEST(OptimizerState, HasEveryGroupWithItsOwnOptions) {
  Small module;
  AdamW optimizer({module.b}, {.lr = 0.1});
  optimizer.add_param_group({{module.a}, optimizer.param_groups()[0].options().clone()});
  optimizer.param_groups()[1].options().set_lr(0.7);
  const auto groups = optimizer.state_dict(module).groups;
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].at("params"), Json({"b"}));
  EXPECT_EQ(groups[0].at("lr"), 0.1);
  EXPECT_EQ(groups[1].at("params"), Json({"a"}));
  EXPECT_EQ(groups[1].at("lr"), 0.7);
  auto state = optimizer.state_dict(module);
  state.groups[1]["lr"] = -1;
  EXPECT_ERROR(optimizer.load_state_dict(module, state, "a file"), DataError,
               "a file: expected a value >= 0 for lr in group 1, got -1");
}

TEST(OptimizerState, NeedsTheModuleOfTheParameters) {
  UsedAdamW used({});
  const Small other;
  const std::string text =
      "optimizer state: a parameter, Float [2, 3], is none of the module's; hint: ";
  EXPECT_ERROR(used.optimizer.state_dict(other), UsageError, text);
  EXPECT_ERROR(used.optimizer.load_state_dict(other, used.state(), "a file"), UsageError, text);
}

TEST(OptimizerState, KeepsTheNameOfAChildNamedModule) {
  torch::nn::Module network;
  network.register_module("module", std::make_shared<Small>());
  network.register_parameter("b", torch::ones({4}));
  AdamW optimizer(network.parameters());
  step_with(optimizer, network.parameters(), 1.0);
  const auto state = optimizer.state_dict(network);
  EXPECT_TRUE(state.tensors.contains("b.step") && state.tensors.contains("module.b.step"));
}

// --- going on ---------------------------------------------------------------------------

// A training run of ConvNet, whose weights lie in channels_last.
struct Training {
  explicit Training(const Way& way)
      : model(first_model(convnet())),
        optimizer(way.optimizer(*model)),
        scheduler(way.scheduler(*optimizer)) {}

  void go(int from, int to) {
    for (int step = from; step < to; ++step) {
      run_backward(*model, convnet(), random_batch(6, static_cast<std::uint64_t>(step) + 1));
      optimizer->step();
      scheduler->step();
    }
  }

  std::string weights() const { return weights_sha256(state_dict(*model)); }

  std::shared_ptr<Model> model;
  OptimizerPointer optimizer;
  SchedulerPointer scheduler;
};

// As a checkpoint does it: through files.
void save(const Training& training, const TemporaryFolder& folder) {
  save_model(*training.model, folder.file("model.safetensors"));
  save_safetensors(folder.file("optimizer.safetensors"),
                   to_safetensors(training.optimizer->state_dict(*training.model)));
  folder.write("scheduler.json", training.scheduler->state_dict().dump());
}

void load(Training& training, const TemporaryFolder& folder) {
  load_model(*training.model, folder.file("model.safetensors"));
  const auto path = folder.file("optimizer.safetensors");
  training.optimizer->load_state_dict(*training.model,
                                      optimizer_state_from(load_safetensors(path), path), path);
  training.scheduler->load_state_dict(Json::parse(folder.read("scheduler.json")), "scheduler");
}

TEST(OptimizerState, GoesOnAsIfTheRunHadNeverStopped) {
  for (const auto& [name, way] : ways()) {
    Training whole(way);
    whole.go(0, kRunSteps);
    for (const int stop : {0, 1, kRunSteps - 1}) {
      SCOPED_TRACE(name + ", stopped after " + std::to_string(stop));
      const TemporaryFolder folder;
      Training first(way);
      first.go(0, stop);
      save(first, folder);
      Training second(way);
      second.go(0, 2);  // a past of its own, of which nothing may be left
      load(second, folder);
      second.go(stop, kRunSteps);
      EXPECT_EQ(second.weights(), whole.weights());
    }
  }
}

// So that the test above means something.
TEST(OptimizerState, IsNeededToGoOn) {
  for (const auto& [name, way] : ways()) {
    if (name == "sgd") continue;  // it remembers nothing
    Training whole(way);
    whole.go(0, kRunSteps);
    Training first(way);
    first.go(0, 4);
    Training second(way);
    load_state_dict(*second.model, state_dict(*first.model), "first");
    second.scheduler->load_state_dict(first.scheduler->state_dict(), "first");
    for (std::size_t group = 0; group < second.optimizer->param_groups().size(); ++group) {
      const auto& same = first.optimizer->param_groups()[group].options();
      second.optimizer->param_groups()[group].options().set_lr(same.get_lr());
    }
    second.go(4, kRunSteps);
    EXPECT_NE(second.weights(), whole.weights()) << name;
  }
}

TEST(OptimizerState, BringsItsOptionsAlong) {
  const UsedAdamW used({.lr = 0.1, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-4, .weight_decay = 0.5});
  UsedAdamW other({});
  other.optimizer.load_state_dict(*other.module, used.state(), "a file");
  expect_equal(other.state(), used.state());
  EXPECT_EQ(other.optimizer.param_groups()[0].options().get_lr(), 0.1);
  const UsedSgd with({.lr = 0.1, .momentum = 0.75, .dampening = 0.25, .weight_decay = 0.5});
  UsedSgd without({.lr = 0.2});
  without.optimizer.load_state_dict(*without.module, with.state(), "a file");
  expect_equal(without.state(), with.state());
}

// Also to the last bit: 0.1 + 0.2 has 17 digits.
TEST(OptimizerState, KeepsEveryBitOfItsOptionsInAFile) {
  const TemporaryFolder folder;
  const auto path = folder.file("optimizer.safetensors");
  UsedAdamW used({.lr = 0.1 + 0.2, .beta1 = std::nextafter(1.0, 0.0), .eps = 5e-324});
  save_safetensors(path, to_safetensors(used.state()));
  const auto loaded = optimizer_state_from(load_safetensors(path), path);
  expect_equal(loaded, used.state());
  EXPECT_EQ(load_safetensors(path).metadata.at("format"), "pt");
}

TEST(OptimizerState, IsReplacedAsAWhole) {
  Small module;
  AdamW early(module.parameters());
  step_with(early, {module.b}, 1.0);
  UsedAdamW used({});
  used.optimizer.load_state_dict(*used.module, early.state_dict(module), "a file");
  EXPECT_EQ(names_of(used.state().tensors), (Names{"b.exp_avg", "b.exp_avg_sq", "b.step"}));
  const UsedSgd plain({.lr = 0.1});
  UsedSgd momentum({.lr = 0.1, .momentum = 0.9});
  momentum.optimizer.load_state_dict(*momentum.module, plain.state(), "a file");
  EXPECT_TRUE(momentum.state().tensors.empty());
}

TEST(OptimizerState, IsCheckedFirstAndCopiedLater) {
  const UsedAdamW used({.lr = 0.1});
  const auto values = copy_of(used.state());
  UsedAdamW other({.lr = 0.2});
  step_with(other.optimizer, {other.module->a}, 1.0);
  const auto before = copy_of(other.state());
  const auto apply = other.optimizer.plan_load(*other.module, values, "a file");
  expect_equal(other.state(), before);
  values.tensors.at("a.exp_avg").fill_(9.0);
  apply();
  values.tensors.at("b.exp_avg").fill_(9.0);
  expect_equal(other.state(), used.state());
}

TEST(OptimizerState, LiesAsItsParametersDo) {
  struct Image : torch::nn::Module {
    Image()
        : weight(register_parameter(
              "weight", torch::ones({2, 3, 4, 5}).contiguous(torch::MemoryFormat::ChannelsLast))) {}
    torch::Tensor weight;
  };
  Image module;
  AdamW optimizer(module.parameters());
  const auto values = torch::arange(120.0F).view({2, 3, 4, 5});
  auto groups = optimizer.state_dict(module).groups;
  optimizer.load_state_dict(module,
                            {{{"weight.exp_avg", values},
                              {"weight.exp_avg_sq", values.square()},
                              {"weight.step", torch::tensor(3.0F)}},
                             std::move(groups)},
                            "a file");
  const auto tensors = optimizer.state_dict(module).tensors;
  EXPECT_EQ(tensors.at("weight.exp_avg").strides(), module.weight.strides());
  EXPECT_TRUE(torch::equal(tensors.at("weight.exp_avg"), values));
}

TEST(OptimizerState, HasTheDtypeOfItsParameters) {
  for (const auto dtype : {torch::kBFloat16, torch::kFloat64}) {
    Small module(dtype);
    AdamW optimizer(module.parameters());
    step_with(optimizer, module.parameters(), 0.5);
    const auto state = copy_of(optimizer.state_dict(module));
    EXPECT_EQ(state.tensors.at("a.exp_avg").scalar_type(), dtype);
    EXPECT_EQ(state.tensors.at("a.step").scalar_type(), torch::kFloat32);
    AdamW other(module.parameters());
    other.load_state_dict(module, state, "a file");
    expect_equal(other.state_dict(module), state);
    Small plain;
    AdamW of_plain(plain.parameters());
    EXPECT_ERROR(of_plain.load_state_dict(plain, state, "a file"), DataError,
                 std::string("a file: expected a.exp_avg as Float [2, 3], got ") +
                     (dtype == torch::kBFloat16 ? "BFloat16 [2, 3]" : "Double [2, 3]"));
  }
}

// --- damage -----------------------------------------------------------------------------

constexpr const char* kHint = "; hint: is this the state of another optimizer or network?";

struct Damage {
  std::function<void(OptimizerState&)> make;
  std::string text;  // of the error
};

// Puts `value` into the place of the first group that `pointer` names.
Damage option(const std::string& pointer, const Json& value, const std::string& text) {
  return {[=](OptimizerState& state) { state.groups[0][Json::json_pointer(pointer)] = value; },
          text};
}

// `form` is the form that the reader expects.
Damage without_option(const std::string& name, const std::string& form = "a number") {
  return {[=](OptimizerState& state) { state.groups[0].erase(name); },
          form + " as \"" + name + "\" in group 0, got none"};
}

Damage tensor(const std::string& name, const torch::Tensor& value, const std::string& text) {
  return {[=](OptimizerState& state) { state.tensors[name] = value; }, text};
}

Damage without_tensor(const std::string& name) {
  return {[=](OptimizerState& state) { state.tensors.erase(name); },
          "a tensor " + name + ", got none"};
}

Damage groups(const Json& value, const std::string& text) {
  return {[=](OptimizerState& state) { state.groups = value; }, text};
}

// Those that any optimizer may meet. What is refused in any JSON is in io/json_test.cpp.
std::vector<Damage> damaged_groups(const Json& good) {
  return {
      groups(Json::object(), "1 parameter groups, got no array"),
      groups(Json::array(), "1 parameter groups, got 0"),
      groups({good[0], good[0]}, "1 parameter groups, got 2"),
      option("/params", {"a"}, "b at 1 of params in group 0, got nothing more"),
      option("/params", {"a", "b", "c"}, R"(nothing more at 2 of params in group 0, got "c")"),
      option("/params", {"b", "a"}, R"(a at 0 of params in group 0, got "b")"),
      option("/params", {"module.a", "b"}, R"(a at 0 of params in group 0, got "module.a")"),
      without_option("lr"),
      option("/lr", -0.5, "a value >= 0 for lr in group 0, got -0.5"),
      option("/weight_decay", -1, "a value >= 0 for weight_decay in group 0, got -1"),
  };
}

// Each damage must be refused in its words, and leave everything as it was.
template <typename AnyUsed>
void expect_refused(const AnyUsed& source, AnyUsed used, std::vector<Damage> damages) {
  const auto good = copy_of(source.state());
  const auto of_any = damaged_groups(good.groups);
  damages.insert(damages.end(), of_any.begin(), of_any.end());
  const auto before = copy_of(used.state());
  const auto weights = weights_sha256(state_dict(*used.module));
  for (const auto& damage : damages) {
    SCOPED_TRACE(damage.text);
    auto state = copy_of(good);
    damage.make(state);
    EXPECT_ERROR(used.optimizer.load_state_dict(*used.module, std::move(state), "o.safetensors"),
                 DataError, "o.safetensors: expected " + damage.text + kHint);
    expect_equal(used.state(), before);
    EXPECT_EQ(weights_sha256(state_dict(*used.module)), weights);
  }
}

const std::string kAlone = "tensors of the optimizer's parameters alone, got ";
const std::string kNotFinite = ", got NaN or infinity";

TEST(OptimizerState, OfAdamWIsRefusedWithAnyDamage) {
  const std::string only = "only params, lr, betas, eps, weight_decay in group 0, got ";
  const auto step = [](const torch::Tensor& value, const std::string& got) {
    return tensor("b.step", value, "a count of steps as b.step, got " + got);
  };
  expect_refused(
      UsedAdamW({.lr = 0.3}), UsedAdamW({.lr = 0.1}),
      {
          without_option("betas", "an array of 2 numbers"),
          without_option("eps"),
          option("/amsgrad", true, only + "\"amsgrad\""),
          option("/momentum", 0.9, only + "\"momentum\""),
          option("/betas/0", 1.0, "0 <= beta < 1 for beta1 in group 0, got 1"),
          option("/betas/1", -0.1, "0 <= beta < 1 for beta2 in group 0, got -0.1"),
          option("/eps", -1e-8, "a value >= 0 for eps in group 0, got -1e-08"),
          without_tensor("a.exp_avg"),
          without_tensor("a.exp_avg_sq"),
          without_tensor("b.step"),
          tensor("a.exp_avg", torch::ones({3, 2}), "a.exp_avg as Float [2, 3], got Float [3, 2]"),
          tensor("b.exp_avg_sq", torch::ones({}), "b.exp_avg_sq as Float [4], got Float []"),
          tensor("b.exp_avg", torch::ones({4}, torch::kFloat16),
                 "b.exp_avg as Float [4], got Half [4]"),
          tensor("b.step", torch::tensor(2, torch::kInt64), "b.step as Float [], got Long []"),
          tensor("b.step", torch::ones({1}), "b.step as Float [], got Float [1]"),
          step(torch::tensor(-1.0F), "-1"),
          step(torch::tensor(1.5F), "1.5"),
          step(torch::tensor(INFINITY), "inf"),
          step(torch::tensor(NAN), "nan"),
          step(torch::tensor(1e13F), "9999999827968"),
          tensor("b.exp_avg", torch::tensor({0.0F, 1.0F, NAN, 1.0F}),
                 "finite numbers in b.exp_avg" + kNotFinite),
          tensor("b.exp_avg", torch::full({4}, -INFINITY),
                 "finite numbers in b.exp_avg" + kNotFinite),
          tensor("b.exp_avg_sq", torch::tensor({0.0F, 1.0F, NAN, 1.0F}),
                 "finite numbers in b.exp_avg_sq" + kNotFinite),
          tensor("b.exp_avg_sq", torch::tensor({0.0F, 1.0F, -1e-30F, 1.0F}),
                 "numbers >= 0 in b.exp_avg_sq, got a negative one"),
          tensor("c.step", torch::tensor(1.0F), kAlone + "\"c.step\""),
          tensor("a.max_exp_avg_sq", torch::ones({2, 3}), kAlone + "\"a.max_exp_avg_sq\""),
          tensor("module.a.step", torch::tensor(1.0F), kAlone + "\"module.a.step\""),
      });
}

TEST(OptimizerState, OfSgdIsRefusedWithAnyDamage) {
  expect_refused(
      UsedSgd({.lr = 0.3, .momentum = 0.9}), UsedSgd({.lr = 0.1, .momentum = 0.5}),
      {
          without_option("momentum"),
          without_option("dampening"),
          without_option("nesterov", "true or false"),
          option("/betas", {0.9, 0.999},
                 "only params, lr, momentum, dampening, weight_decay, nesterov in group 0, got "
                 "\"betas\""),
          option("/momentum", -0.9, "a value >= 0 for momentum in group 0, got -0.9"),
          option("/momentum", 0.0, kAlone + "\"a.momentum_buffer\""),
          {[](OptimizerState& state) {
             state.groups[0]["nesterov"] = true;
             state.groups[0]["dampening"] = 0.5;
           },
           "momentum > 0 and dampening 0 beside nesterov in group 0, got 0.9 and 0.5"},
          tensor("a.momentum_buffer", torch::ones({6}),
                 "a.momentum_buffer as Float [2, 3], got Float [6]"),
          tensor("a.momentum_buffer", torch::full({2, 3}, NAN),
                 "finite numbers in a.momentum_buffer" + kNotFinite),
          tensor("a.step", torch::tensor(1.0F), kAlone + "\"a.step\""),
      });
}

TEST(OptimizerState, OfAdamIsRefusedWithAnyDamage) {
  expect_refused(
      UsedAdam({.lr = 0.3}), UsedAdam({.lr = 0.1}),
      {
          without_option("decoupled_weight_decay", "true or false"),
          option("/decoupled_weight_decay", true,
                 R"(false as "decoupled_weight_decay" in group 0, got true)"),
          option("/amsgrad", true,
                 "only params, lr, betas, eps, weight_decay, decoupled_weight_decay in group 0, "
                 "got \"amsgrad\""),
          option("/betas/0", 1.0, "0 <= beta < 1 for beta1 in group 0, got 1"),
          without_tensor("a.exp_avg"),
          tensor("b.step", torch::tensor(-1.0F), "a count of steps as b.step, got -1"),
      });
}

TEST(OptimizerState, OfAdagradIsRefusedWithAnyDamage) {
  expect_refused(
      UsedAdagrad({.lr = 0.3}), UsedAdagrad({.lr = 0.1}),
      {
          without_option("lr_decay"),
          without_option("initial_accumulator_value"),
          without_option("eps"),
          option("/betas", 1,
                 "only params, lr, lr_decay, weight_decay, initial_accumulator_value, eps in group "
                 "0, got \"betas\""),
          option("/lr_decay", -0.5, "a value >= 0 for lr_decay in group 0, got -0.5"),
          option("/initial_accumulator_value", -1,
                 "a value >= 0 for initial_accumulator_value in group 0, got -1"),
          option("/eps", -0.5, "a value >= 0 for eps in group 0, got -0.5"),
          without_tensor("a.sum"),
          without_tensor("b.step"),
          tensor("a.sum", torch::ones({6}), "a.sum as Float [2, 3], got Float [6]"),
          tensor("a.sum", torch::full({2, 3}, -1.0F), "numbers >= 0 in a.sum, got a negative one"),
          tensor("b.step", torch::tensor(1.5F), "a count of steps as b.step, got 1.5"),
      });
}

TEST(OptimizerState, OfRMSpropIsRefusedWithAnyDamage) {
  expect_refused(
      UsedRMSprop({.lr = 0.3, .momentum = 0.9, .centered = true}),
      UsedRMSprop({.lr = 0.1, .momentum = 0.5, .centered = true}),
      {
          without_option("alpha"),
          without_option("eps"),
          without_option("momentum"),
          without_option("centered", "true or false"),
          option("/nesterov", true,
                 "only params, lr, alpha, eps, weight_decay, momentum, centered in group 0, got "
                 "\"nesterov\""),
          option("/alpha", -0.5, "a value >= 0 for alpha in group 0, got -0.5"),
          option("/eps", -0.5, "a value >= 0 for eps in group 0, got -0.5"),
          option("/momentum", -0.5, "a value >= 0 for momentum in group 0, got -0.5"),
          option("/momentum", 0.0, kAlone + "\"a.momentum_buffer\""),
          option("/centered", false, kAlone + "\"a.grad_avg\""),
          without_tensor("a.square_avg"),
          tensor("a.square_avg", torch::full({2, 3}, -1.0F),
                 "numbers >= 0 in a.square_avg, got a negative one"),
          without_tensor("a.momentum_buffer"),
          without_tensor("a.grad_avg"),
          without_tensor("b.step"),
          tensor("b.step", torch::tensor(-1.0F), "a count of steps as b.step, got -1"),
      });
}

TEST(OptimizerState, OfAdamAndAdamWAreNotTakenForEachOther) {
  UsedAdam adam({});
  UsedAdamW adamw({});
  EXPECT_ERROR(
      adam.optimizer.load_state_dict(*adam.module, adamw.state(), "o"), DataError,
      R"(o: expected true or false as "decoupled_weight_decay" in group 0, got none; hint: is)");
  EXPECT_ERROR(adamw.optimizer.load_state_dict(*adamw.module, adam.state(), "o"), DataError,
               "o: expected only params, lr, betas, eps, weight_decay in group 0, got \"dec");
}

TEST(OptimizerState, ReadsNoOtherFile) {
  EXPECT_ERROR(optimizer_state_from({}, "f"), DataError,
               "f: expected groups in the metadata, got none; hint: it must hold the state of");
  EXPECT_ERROR(optimizer_state_from({{}, {{"groups", "["}}}, "f"), DataError,
               "f: expected valid JSON, got an error at byte ");
}

}  // namespace
}  // namespace ladder
