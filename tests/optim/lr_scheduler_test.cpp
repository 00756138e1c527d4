// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/lr_scheduler.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/optim/sgd.h"
#include "tests/support/expect_error.h"

namespace ladder {
namespace {

using Rates = std::vector<double>;

SGD optimizer_with(double lr) { return SGD({torch::zeros({1})}, {.lr = lr}); }

// Python writes doubles as hexadecimal floats, which lose nothing.
double number(const nlohmann::json& text) {
  return std::strtod(text.get<std::string>().c_str(), nullptr);
}

std::unique_ptr<LrScheduler> scheduler_of(const nlohmann::json& golden,
                                          torch::optim::Optimizer& optimizer) {
  const auto& name = golden.at("schedule").get_ref<const std::string&>();
  const auto& options = golden.at("options");
  if (name == "StepLR") {
    return std::make_unique<StepLR>(optimizer, StepLrOptions{.step_size = options.at("step_size"),
                                                             .gamma = options.at("gamma")});
  }
  if (name == "get_constant_schedule") return constant_schedule(optimizer);
  const WarmupOptions warmup = {options.at("num_warmup_steps"), options.at("num_training_steps")};
  return name == "get_linear_schedule_with_warmup" ? linear_schedule_with_warmup(optimizer, warmup)
                                                   : cosine_schedule_with_warmup(optimizer, warmup);
}

void expect_golden(const nlohmann::json& golden) {
  auto optimizer = optimizer_with(number(golden.at("base_lr")));
  const auto scheduler = scheduler_of(golden, optimizer);
  for (const char* part : {"lr", "after_end"}) {
    for (const auto& rate : golden.at(part)) {
      ASSERT_EQ(scheduler->last_lr(), Rates{number(rate)})
          << part << " after " << scheduler->last_epoch() << " steps";
      scheduler->step();
    }
  }
  EXPECT_EQ(scheduler->last_epoch(), 45);
}

TEST(LrSchedulers, GivePythonsRatesToTheLastBit) {
  std::ifstream file(LADDER_SOURCE_DIR "/tests/golden/schedulers.json");
  const auto golden = nlohmann::json::parse(file);
  ASSERT_GE(golden.at("cases").size(), 14U);
  for (const auto& schedule : golden.at("cases")) {
    SCOPED_TRACE(schedule.at("schedule").dump() + schedule.at("options").dump());
    expect_golden(schedule);
  }
}

TEST(LrSchedulers, SetTheRateOfTheOptimizer) {
  auto optimizer = optimizer_with(1.0);
  const auto scheduler = linear_schedule_with_warmup(optimizer, {2, 4});
  Rates rates;
  for (int step = 0; step < 6; ++step) {
    rates.push_back(optimizer.param_groups()[0].options().get_lr());
    scheduler->step();
  }
  EXPECT_EQ(rates, (Rates{0.0, 0.5, 1.0, 0.5, 0.0, 0.0}));
}

TEST(LrSchedulers, HandleEveryParameterGroupByItsOwnRate) {
  auto optimizer = optimizer_with(1.0);
  optimizer.add_param_group(torch::optim::OptimizerParamGroup(
      {torch::zeros({1})}, optimizer.param_groups()[0].options().clone()));
  optimizer.param_groups()[1].options().set_lr(4.0);
  LambdaLR scheduler(optimizer, [](std::int64_t step) { return step == 0 ? 1.0 : 0.5; });
  EXPECT_EQ(scheduler.last_lr(), (Rates{1.0, 4.0}));
  scheduler.step();
  EXPECT_EQ(scheduler.last_lr(), (Rates{0.5, 2.0}));
}

TEST(StepLR, MultipliesTheRateInForceSoThatSchedulersChain) {
  auto optimizer = optimizer_with(1.0);
  StepLR every(optimizer, {.step_size = 1, .gamma = 0.5});
  StepLR every_second(optimizer, {.step_size = 2, .gamma = 0.25});
  Rates rates;
  for (int epoch = 0; epoch < 3; ++epoch) {
    every.step();
    every_second.step();
    rates.push_back(every.last_lr()[0]);
  }
  EXPECT_EQ(rates, (Rates{0.5, 0.0625, 0.03125}));
}

TEST(StepLR, TakesARateThatWasSetByHandAsItsNewStart) {
  auto optimizer = optimizer_with(1.0);
  StepLR scheduler(optimizer, {.step_size = 1, .gamma = 0.5});
  optimizer.param_groups()[0].options().set_lr(8.0);
  scheduler.step();
  EXPECT_EQ(scheduler.last_lr(), Rates{4.0});
}

TEST(LambdaLR, StartsFromTheRateItWasMadeWith) {
  auto optimizer = optimizer_with(2.0);
  LambdaLR scheduler(optimizer, [](std::int64_t step) { return 1.0 + static_cast<double>(step); });
  optimizer.param_groups()[0].options().set_lr(100.0);
  scheduler.step();
  EXPECT_EQ(scheduler.last_lr(), Rates{4.0});
}

TEST(WarmupSchedules, ThatAreAllWarmupFallAtOnce) {
  auto optimizer = optimizer_with(1.0);
  const auto scheduler = linear_schedule_with_warmup(optimizer, {2, 2});
  Rates rates;
  for (int step = 0; step < 4; ++step) {
    rates.push_back(scheduler->last_lr()[0]);
    scheduler->step();
  }
  EXPECT_EQ(rates, (Rates{0.0, 0.5, 0.0, 0.0}));
}

TEST(StepLR, RefusesAStepSizeBelowOne) {
  auto optimizer = optimizer_with(1.0);
  EXPECT_ERROR(StepLR(optimizer, {.step_size = 0}), UsageError,
               "StepLR step_size: expected a number > 0, got 0");
}

}  // namespace
}  // namespace ladder
