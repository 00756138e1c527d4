// SPDX-License-Identifier: Apache-2.0
#include "ladder/trainer/optimizer_factory.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/nn/batch_norm.h"
#include "ladder/nn/model.h"
#include "ladder/optim/adagrad.h"
#include "ladder/optim/adam.h"
#include "ladder/optim/fused_optimizer.h"
#include "ladder/optim/reduce_lr_on_plateau.h"
#include "ladder/optim/rmsprop.h"
#include "ladder/optim/sgd.h"
#include "mnist/networks.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace ladder {
namespace {

using Json = nlohmann::json;

// --- optimizers -------------------------------------------------------------------------

// The same as Odd in tests/golden/trainer_optimizers.py: names that are like those of
// normalisation layers, and layers that are one.
struct Odd : torch::nn::Module {
  Odd() {
    register_parameter("scale", torch::ones({1}));
    register_parameter("my_norm", torch::ones({1}));
    register_parameter("frozen", torch::ones({1}), /*requires_grad=*/false);
    torch::nn::Linear normal(2, 2);
    for (const char* name :
         {"norm", "normal", "pre_norm", "RMSNorm_1", "LayerNorms", "biased", "groupnorm"}) {
      const bool is_normal = std::string(name) == "normal";
      register_module(name, is_normal ? normal : torch::nn::Linear(2, 2));
    }
    register_module("plain", torch::nn::LayerNorm(torch::nn::LayerNormOptions({2})));
    torch::nn::Sequential block(torch::nn::Linear(2, 2),
                                torch::nn::LayerNorm(torch::nn::LayerNormOptions({2})),
                                BatchNorm(BatchNormOptions{.features = 2}));
    const auto without_bias = torch::nn::LinearOptions(2, 2).bias(false);
    block->push_back("norm", torch::nn::Linear(without_bias));
    block->push_back("norm1", torch::nn::Linear(without_bias));
    register_module("block", block);
    register_module("tied", normal);
  }
};

std::shared_ptr<torch::nn::Module> model_of(const std::string& name) {
  if (name == "basicnet") return mnist::make_basic_net();
  if (name == "convnet") return mnist::make_conv_net();
  return std::make_shared<Odd>();
}

const Json& golden() { return golden_json("trainer_optimizers.json"); }

TrainingArguments arguments_of(const Json& json) {
  auto arguments = training_arguments_from(json, "golden");
  arguments.learning_rate = number(golden().at("learning_rate"));
  return arguments;
}

std::string kind_of(const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const AdamW*>(&optimizer) != nullptr) return "AdamW";
  if (dynamic_cast<const Adam*>(&optimizer) != nullptr) return "Adam";
  if (dynamic_cast<const SGD*>(&optimizer) != nullptr) return "SGD";
  if (dynamic_cast<const Adagrad*>(&optimizer) != nullptr) return "Adagrad";
  return dynamic_cast<const RMSprop*>(&optimizer) != nullptr ? "RMSprop" : "another";
}

TEST(MakeOptimizer, MakesThePythonTrainersGroups) {
  int compared = 0;
  for (const auto& wanted : golden().at("cases")) {
    if (!wanted.contains("groups")) continue;
    SCOPED_TRACE(wanted.at("model").dump() + wanted.at("arguments").dump());
    const auto model = model_of(wanted.at("model"));
    const auto optimizer = make_optimizer(arguments_of(wanted.at("arguments")), *model);
    EXPECT_EQ(kind_of(*optimizer), wanted.at("optimizer").get<std::string>());
    const auto state = dynamic_cast<const FusedOptimizer&>(*optimizer).state_dict(*model);
    EXPECT_EQ(Json(state.groups), wanted.at("groups"));
    ++compared;
  }
  EXPECT_EQ(compared, 8);
}

TEST(MakeOptimizer, MakesAdamToo) {
  const auto optimizer =
      make_optimizer({.optim = OptimizerName::kAdam, .weight_decay = 0.25, .adam_beta1 = 0.5},
                     *mnist::make_conv_net());
  EXPECT_EQ(kind_of(*optimizer), "Adam");
  const auto& options = options_of<AdamOptions>(optimizer->param_groups()[0]);
  EXPECT_EQ(options.beta1, 0.5);
  EXPECT_EQ(options.weight_decay, 0.25);
  EXPECT_EQ(options_of<AdamOptions>(optimizer->param_groups()[1]).weight_decay, 0.0);
}

TEST(MakeOptimizer, MakesOneThatStepsWithAnEmptyGroup) {
  torch::nn::LayerNorm layer(torch::nn::LayerNormOptions({2}));
  const torch::nn::Sequential model(layer);
  const auto optimizer = make_optimizer({}, *model);
  EXPECT_TRUE(optimizer->param_groups()[0].params().empty());
  layer->weight.mutable_grad() = torch::ones({2});
  optimizer->step();
  EXPECT_FALSE(torch::equal(layer->weight, torch::ones({2})));
}

TEST(MakeOptimizer, RefusesArgumentsOutsideTheirRange) {
  EXPECT_ERROR(make_optimizer({.adam_beta2 = 1.0}, *mnist::make_conv_net()), UsageError,
               "AdamW beta2: expected 0 <= beta < 1, got 1");
}

// --- schedules --------------------------------------------------------------------------

void expect_golden_rates(const Json& wanted) {
  const auto arguments = arguments_of(wanted.at("arguments"));
  const auto model = mnist::make_conv_net();
  const auto optimizer = make_optimizer(arguments, *model);
  const auto scheduler = make_scheduler(arguments, *optimizer, golden().at("training_steps"));
  auto* const plateau = dynamic_cast<ReduceLROnPlateau*>(scheduler.get());
  int step = 0;
  for (const auto& rate : wanted.at("lr")) {
    for (const double lr : scheduler->last_lr()) ASSERT_EQ(lr, number(rate)) << "step " << step;
    if (plateau != nullptr) {
      plateau->step(1.0 / (1 + std::min(step, 20)));
    } else {
      scheduler->step();
    }
    ++step;
  }
  EXPECT_EQ(step, 61);
}

TEST(MakeScheduler, MakesThePythonTrainersRates) {
  int compared = 0;
  for (const auto& wanted : golden().at("cases")) {
    if (!wanted.contains("lr")) continue;
    SCOPED_TRACE(wanted.at("arguments").dump());
    expect_golden_rates(wanted);
    ++compared;
  }
  EXPECT_EQ(compared, 39);
}

TEST(MakeScheduler, CountsTheStepsOfTheWarmup) {
  TrainingArguments arguments;
  EXPECT_EQ(warmup_steps_of(arguments, 100), 0);
  arguments.warmup_ratio = 0.101;
  EXPECT_EQ(warmup_steps_of(arguments, 100), 11) << "rounded up";
  arguments.warmup_steps = 0.07;
  EXPECT_EQ(warmup_steps_of(arguments, 100), 8) << "100 * 0.07 is a little above 7, as in Python";
  arguments.warmup_steps = 1.0;
  EXPECT_EQ(warmup_steps_of(arguments, 100), 1);
  arguments.warmup_steps = 7.9;
  EXPECT_EQ(warmup_steps_of(arguments, 100), 7);
}

TEST(MakeScheduler, RefusesKwargsThatTheScheduleCannotTake) {
  struct Case {
    SchedulerType type;
    std::string kwargs, message;
  };
  using enum SchedulerType;
  const auto optimizer = make_optimizer({}, *mnist::make_conv_net());
  const auto schedule = [&](SchedulerType type, const std::string& kwargs) {
    return make_scheduler({.lr_scheduler_type = type, .lr_scheduler_kwargs = kwargs}, *optimizer,
                          10);
  };
  for (const auto& [type, kwargs, message] : std::vector<Case>{
           {kLinear, "", "expected valid JSON, got an error at byte 1, line 1; hint: such as {"},
           {kLinear, "[]", "expected an object, got []; hint: such as {"},
           {kLinear, "{\"a\": 1e999}", "expected valid JSON, got a number"},
           {kLinear, R"({"num_cycles": 2})", "this schedule takes no num_cycles"},
           {kConstant, R"({"x": 2})", "this schedule takes no x"},
           {kConstantWithWarmup, R"({"x": 2})", "this schedule takes no x"},
           {kCosine, R"({"num_cycle": 2})", "expected one of num_cycles, got 'num_cycle'"},
           {kCosine, R"({"num_cycles": "2"})", R"(expected a number as "num_cycles", got "2")"},
           {kPolynomial, R"({"lr_ends": 0})", "expected one of lr_end, power, got 'lr_ends'"},
           {kInverseSqrt, R"({"timescale": 1.5})", R"(from 0 to 2^62 as "timescale", got 1.5)"},
           {kReduceLrOnPlateau, R"({"mode": "low"})",
            R"(expected min or max as "mode", got "low")"},
           {kReduceLrOnPlateau, R"({"treshold": 1})",
            "expected one of mode, factor, patience, thre"},
           {kReduceLrOnPlateau, R"({"patience": true})", R"(as "patience", got true)"}}) {
    EXPECT_ERROR(schedule(type, kwargs), UsageError, "lr_scheduler_kwargs: ", message);
  }
  EXPECT_NO_THROW(schedule(kInverseSqrt, R"({"timescale": null})"));
}

}  // namespace
}  // namespace ladder
