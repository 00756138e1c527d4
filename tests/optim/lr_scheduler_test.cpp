// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/lr_scheduler.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/optim/fused_optimizer.h"
#include "ladder/optim/reduce_lr_on_plateau.h"
#include "ladder/optim/schedules.h"
#include "ladder/optim/sgd.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/optimizers.h"

namespace ladder {
namespace {

using Rates = std::vector<double>;

std::unique_ptr<LrScheduler> schedule_of(const std::string& name, const nlohmann::json& options,
                                         torch::optim::Optimizer& optimizer) {
  if (name == "get_constant_schedule") return constant_schedule(optimizer);
  const WarmupOptions warmup = {options.at("num_warmup_steps"),
                                options.value("num_training_steps", std::int64_t{0})};
  if (name == "get_constant_schedule_with_warmup") {
    return constant_schedule_with_warmup(optimizer, warmup.warmup_steps);
  }
  if (name == "get_inverse_sqrt_schedule") {
    std::optional<std::int64_t> timescale;
    if (options.contains("timescale")) timescale = options["timescale"];
    return inverse_sqrt_schedule(optimizer, warmup.warmup_steps, timescale);
  }
  if (name == "get_linear_schedule_with_warmup") {
    return linear_schedule_with_warmup(optimizer, warmup);
  }
  if (name == "get_polynomial_decay_schedule_with_warmup") {
    const PolynomialDecayOptions decay = {options.value("lr_end", 1e-7),
                                          options.value("power", 1.0)};
    return polynomial_decay_schedule_with_warmup(optimizer, warmup, decay);
  }
  const double num_cycles = options.at("num_cycles");
  return name == "get_cosine_schedule_with_warmup"
             ? cosine_schedule_with_warmup(optimizer, warmup, num_cycles)
             : cosine_with_hard_restarts_schedule_with_warmup(optimizer, warmup, num_cycles);
}

std::unique_ptr<LrScheduler> scheduler_of(const nlohmann::json& golden,
                                          torch::optim::Optimizer& optimizer) {
  const auto& name = golden.at("schedule").get_ref<const std::string&>();
  const auto& options = golden.at("options");
  if (name == "StepLR") {
    return std::make_unique<StepLR>(optimizer, StepLrOptions{.step_size = options.at("step_size"),
                                                             .gamma = options.at("gamma")});
  }
  return schedule_of(name, options, optimizer);
}

void expect_rates(const nlohmann::json& golden) {
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
  const auto& golden = golden_json("schedulers.json");
  ASSERT_GE(golden.at("cases").size(), 80U);
  for (const auto& schedule : golden.at("cases")) {
    SCOPED_TRACE(schedule.at("schedule").dump() + schedule.at("options").dump());
    expect_rates(schedule);
  }
}

TEST(WarmupSchedules, SetTheRateOfTheOptimizerAlsoWhereAPolynomialIsAllWarmup) {
  auto optimizer = optimizer_with(1.0);
  const auto scheduler =
      polynomial_decay_schedule_with_warmup(optimizer, {2, 2}, {.lr_end = 0.25, .power = 1.0});
  Rates rates;
  for (int step = 0; step < 4; ++step) {
    rates.push_back(optimizer.param_groups()[0].options().get_lr());
    scheduler->step();
  }
  EXPECT_EQ(rates, (Rates{0.0, 0.5, 0.25, 0.25}));
}

TEST(LrSchedulers, HandleEveryParameterGroupByItsOwnRate) {
  auto optimizer = optimizer_with(1.0);
  optimizer.add_param_group(parameter_group({torch::zeros({1})}, SgdOptions{.lr = 4.0}));
  LambdaLR scheduler(optimizer, [](std::int64_t step) { return step == 0 ? 1.0 : 0.5; });
  EXPECT_EQ(scheduler.last_lr(), (Rates{1.0, 4.0}));
  scheduler.step();
  EXPECT_EQ(scheduler.last_lr(), (Rates{0.5, 2.0}));
  auto other = optimizer_with(1.0);
  other.add_param_group(parameter_group({torch::zeros({1})}, SgdOptions{.lr = 4.0}));
  const auto polynomial =
      polynomial_decay_schedule_with_warmup(other, {0, 2}, {.lr_end = 0.5, .power = 1.0});
  polynomial->step();
  EXPECT_EQ(polynomial->last_lr(), (Rates{0.75, 3.0})) << "in proportion";
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

TEST(StepLR, TakesARateThatWasSetByHandAsItsNewStartAndLambdaLRDoesNot) {
  auto optimizer = optimizer_with(1.0);
  StepLR scheduler(optimizer, {.step_size = 1, .gamma = 0.5});
  optimizer.param_groups()[0].options().set_lr(8.0);
  scheduler.step();
  EXPECT_EQ(scheduler.last_lr(), Rates{4.0});
  auto other = optimizer_with(2.0);
  LambdaLR lambda(other, [](std::int64_t step) { return 1.0 + static_cast<double>(step); });
  other.param_groups()[0].options().set_lr(100.0);
  lambda.step();
  EXPECT_EQ(lambda.last_lr(), Rates{4.0});
}

TEST(LrSchedulers, RefuseOptionsOutsideTheirRangeAndAGroupThatWasAddedLater) {
  auto optimizer = optimizer_with(1.0);
  EXPECT_ERROR(cosine_with_hard_restarts_schedule_with_warmup(optimizer, {}, 0.0), UsageError,
               "cosine with restarts num_cycles: expected a number > 0, got 0");
  EXPECT_ERROR(polynomial_decay_schedule_with_warmup(optimizer, {}, {.lr_end = 1.0}), UsageError,
               "polynomial decay lr_end: expected a value below the learning rate, got 1; hint: ");
  EXPECT_ERROR(polynomial_decay_schedule_with_warmup(optimizer, {}, {.power = -1.0}), UsageError,
               "polynomial decay power: expected a value >= 0, got -1");
  EXPECT_ERROR(inverse_sqrt_schedule(optimizer, 0, 0), UsageError,
               "inverse sqrt timescale: expected 1 to 1000000000000, got 0");
  EXPECT_ERROR(StepLR(optimizer, {.step_size = 0}), UsageError,
               "StepLR step_size: expected a number > 0, got 0");
  StepLR schedule(optimizer);
  schedule.step();
  optimizer.add_param_group(parameter_group({torch::zeros({1})}, SgdOptions{}));
  EXPECT_ERROR(schedule.step(), UsageError, "made for 1 parameter groups, the optimizer has 2");
}

// --- steps that depend on a GPU's answer --------------------------------------------------

TEST(LrSchedulers, AskForAConditionLate) {
  auto optimizer = optimizer_with(1.0);
  StepLR scheduler(optimizer, {.step_size = 1, .gamma = 0.5});
  int questions = 0;
  const auto answer = [&](bool taken) {
    return [&questions, taken] {
      ++questions;
      return taken;
    };
  };
  const auto rate = [&] { return optimizer.param_groups()[0].options().get_lr(); };
  scheduler.step_if(answer(true));
  scheduler.step_if(answer(false));
  scheduler.step_if(answer(true));
  EXPECT_EQ(questions, 0);
  EXPECT_EQ(rate(), 1.0);
  scheduler.settle();
  EXPECT_EQ(questions, 3);
  EXPECT_EQ(rate(), 0.25);
  scheduler.settle();
  EXPECT_EQ(questions, 3) << "each is asked once";
}

TEST(LrSchedulers, AreNeverSeenBeforeTheirConditions) {
  using Look = void (*)(StepLR& scheduler);
  const std::vector<Look> looks = {
      [](StepLR& scheduler) { EXPECT_EQ(scheduler.last_epoch(), 1); },
      [](StepLR& scheduler) { EXPECT_EQ(scheduler.last_lr(), Rates{0.5}); },
      [](StepLR& scheduler) { EXPECT_EQ(scheduler.state_dict().at("last_epoch"), 1); },
      [](StepLR& scheduler) {
        scheduler.step();
        EXPECT_EQ(scheduler.last_lr(), Rates{0.25});
      }};
  for (const auto& look : looks) {
    auto optimizer = optimizer_with(1.0);
    StepLR scheduler(optimizer, {.step_size = 1, .gamma = 0.5});
    scheduler.step_if([] { return true; });
    look(scheduler);
  }
}

TEST(LrSchedulers, ForgetTheirConditionsWithANewState) {
  auto optimizer = optimizer_with(1.0);
  StepLR scheduler(optimizer, {.step_size = 1, .gamma = 0.5});
  const auto state = scheduler.state_dict();
  scheduler.step_if([]() -> bool { throw std::logic_error("asked"); });
  scheduler.load_state_dict(state, "scheduler.json");
  EXPECT_EQ(scheduler.state_dict(), state);
}

// --- state ------------------------------------------------------------------------------

TEST(LrSchedulers, SayWhereTheyStand) {
  auto optimizer = optimizer_with(1.0);
  StepLR scheduler(optimizer, {.step_size = 2, .gamma = 0.5});
  for (int step = 0; step < 3; ++step) scheduler.step();
  EXPECT_EQ(scheduler.state_dict().dump(), R"({"base_lrs":[1.0],"last_epoch":3,"last_lr":[0.5]})");
}

// The rates to the end, of a run that stops after `stop` steps and goes on from its state, as a
// checkpoint has it: text, and the rate with the optimizer.
Rates rates_with_a_stop(const nlohmann::json& golden, int stop) {
  Rates rates;
  auto first = optimizer_with(0.1 + 0.2);
  const auto stopped = scheduler_of(golden, first);
  for (int step = 0; step < stop; ++step) {
    stopped->step();
    rates.push_back(stopped->last_lr()[0]);
  }
  const auto text = stopped->state_dict().dump();
  // A polynomial knows the optimizer's first rate, as in Python: it comes from the program.
  const bool keeps_rate = golden.at("schedule") == "get_polynomial_decay_schedule_with_warmup";
  auto second = optimizer_with(keeps_rate ? 0.1 + 0.2 : 7.0);
  const auto resumed = scheduler_of(golden, second);
  resumed->step();
  resumed->load_state_dict(nlohmann::json::parse(text), "scheduler.json");
  second.param_groups()[0].options().set_lr(first.param_groups()[0].options().get_lr());
  EXPECT_EQ(resumed->state_dict().dump(), text);
  for (int step = stop; step < 45; ++step) {
    resumed->step();
    rates.push_back(resumed->last_lr()[0]);
  }
  return rates;
}

TEST(LrSchedulers, GoOnFromTheirState) {
  const auto& golden = golden_json("schedulers.json");
  for (const auto& schedule : golden.at("cases")) {
    SCOPED_TRACE(schedule.at("schedule").dump() + schedule.at("options").dump());
    const auto whole = rates_with_a_stop(schedule, 45);
    for (const int stop : {0, 1, 7, 30}) EXPECT_EQ(rates_with_a_stop(schedule, stop), whole);
  }
}

TEST(LrSchedulers, LeaveTheRateInForceToTheOptimizersState) {
  auto optimizer = optimizer_with(1.0);
  const auto scheduler = constant_schedule(optimizer);
  const auto apply = scheduler->plan_load(
      {{"last_epoch", 9}, {"base_lrs", {3.0}}, {"last_lr", {5.0}}}, "scheduler.json");
  EXPECT_EQ(scheduler->last_epoch(), 0) << "nothing changes before it is applied";
  apply();
  EXPECT_EQ(scheduler->last_epoch(), 9);
  EXPECT_EQ(scheduler->last_lr(), Rates{1.0});
  scheduler->step();
  EXPECT_EQ(scheduler->last_lr(), Rates{3.0});
}

// Damaged states, and the error of each.
std::vector<std::pair<nlohmann::json, std::string>> damaged_states(const nlohmann::json& good) {
  using Json = nlohmann::json;
  std::vector<std::pair<Json, std::string>> bad = {
      {Json::array(), "an object, got []"},
      {nullptr, "an object, got null"},
      {Json::object(), "a whole number from 0 to 1000000000000 as \"last_epoch\", got none"}};
  const auto with = [&](const char* name, const Json& value, const std::string& text) {
    bad.emplace_back(good, text).first[name] = value;
  };
  for (const auto& item : good.items()) {
    const std::string form =
        item.key() == "last_epoch" ? "a whole number" : "an array of 2 numbers";
    bad.emplace_back(good, form).first.erase(item.key());
  }
  with("gamma", 0.1, R"(only last_epoch, base_lrs, last_lr, got "gamma")");
  const auto huge = std::numeric_limits<std::int64_t>::max();
  for (const Json& value : {Json(-1), Json(1.0), Json(true), Json("1"), Json(nullptr), Json(huge),
                            Json(std::numeric_limits<std::uint64_t>::max())}) {
    with("last_epoch", value, R"(a whole number from 0 to 1000000000000 as "last_epoch", got )");
  }
  const auto nan = std::numeric_limits<double>::quiet_NaN();
  for (const char* name : {"base_lrs", "last_lr"}) {
    for (const Json& value : {Json(0.1), Json::array(), Json::array({0.1}), Json::array({1, 2, 3}),
                              Json::array({0.1, nullptr}), Json::array({true, 0.1}),
                              Json::array({0.1, "0.1"}), Json::array({0.1, nan})}) {
      with(name, value, std::string("an array of 2 numbers as \"") + name + "\", got ");
    }
    with(name, {0.1, -0.1}, std::string("learning rates >= 0 as \"") + name + "\", got [0.1,-0.1]");
  }
  return bad;
}

TEST(LrSchedulers, RefuseADamagedStateAndStayAsTheyWere) {
  auto optimizer = optimizer_with(1.0);
  optimizer.add_param_group(torch::optim::OptimizerParamGroup(
      {torch::zeros({1})}, optimizer.param_groups()[0].options().clone()));
  const auto scheduler = linear_schedule_with_warmup(optimizer, {2, 4});
  scheduler->step();
  const auto before = scheduler->state_dict();
  for (const auto& [state, text] : damaged_states(before)) {
    SCOPED_TRACE(state.dump());
    EXPECT_ERROR(scheduler->load_state_dict(state, "scheduler.json"), DataError,
                 "scheduler.json: expected " + text);
    EXPECT_EQ(scheduler->state_dict(), before);
  }
}

// --- ReduceLROnPlateau ---

using Json = nlohmann::json;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

PlateauOptions options_of(const Json& json) {
  PlateauOptions options;
  if (json.value("mode", "min") == "max") options.mode = PlateauMode::kMax;
  if (json.value("threshold_mode", "rel") == "abs") options.threshold_mode = ThresholdMode::kAbs;
  options.factor = json.value("factor", options.factor);
  options.patience = json.value("patience", options.patience);
  options.threshold = json.value("threshold", options.threshold);
  options.cooldown = json.value("cooldown", options.cooldown);
  options.min_lr = json.value("min_lr", options.min_lr);
  options.eps = json.value("eps", options.eps);
  return options;
}

const Json& plateau_cases() { return golden_json("reduce_lr_on_plateau.json").at("cases"); }

// An optimizer of two groups with the first rates of a case, and a schedule of it.
struct PlateauRun {
  explicit PlateauRun(const Json& wanted)
      : golden(wanted),
        optimizer({torch::zeros({1})}, {.lr = number(golden.at("lr")[0][0])}),
        scheduler(with_second_group(), options_of(golden.at("options"))) {}

  void go(std::size_t from, std::size_t to) {
    for (auto i = from; i < to; ++i) {
      scheduler.step(number(golden.at("metrics")[i]));
      expect_golden(i + 1);
    }
  }

  void expect_golden(std::size_t steps) const {
    const auto& rates = golden.at("lr")[steps];
    EXPECT_EQ(scheduler.last_lr(), (Rates{number(rates[0]), number(rates[1])})) << steps;
    const auto state = scheduler.state_dict();
    const double best = number(golden.at("best")[steps]);
    const Json text = best > 0.0 ? "inf" : "-inf";
    EXPECT_EQ(state.at("best"), std::isinf(best) ? text : Json(best)) << steps;
    for (const char* name : {"num_bad_epochs", "cooldown_counter"}) {
      EXPECT_EQ(state.at(name), golden.at(name)[steps]) << name << " after " << steps;
    }
  }

  torch::optim::Optimizer& with_second_group() {
    const SgdOptions second{.lr = number(golden.at("lr")[0][1])};
    optimizer.add_param_group(parameter_group({torch::zeros({1})}, second));
    return optimizer;
  }

  const Json& golden;
  SGD optimizer;
  ReduceLROnPlateau scheduler;
};

TEST(ReduceLROnPlateau, GivesPythonsRatesAndStateToTheLastBit) {
  ASSERT_GE(plateau_cases().size(), 9U);
  for (const auto& golden : plateau_cases()) {
    SCOPED_TRACE(golden.at("options").dump());
    PlateauRun run(golden);
    run.expect_golden(0);
    run.go(0, golden.at("metrics").size());
    EXPECT_NE(golden.at("lr").front(), golden.at("lr").back()) << "a rate that never falls";
  }
}

TEST(ReduceLROnPlateau, GoesOnFromItsState) {
  for (const auto& golden : plateau_cases()) {
    for (const std::size_t stop : {0U, 1U, 7U, 21U, 30U}) {
      SCOPED_TRACE(golden.at("options").dump() + " stopped after " + std::to_string(stop));
      PlateauRun first(golden);
      first.go(0, stop);
      const auto text = first.scheduler.state_dict().dump();
      PlateauRun second(golden);
      second.scheduler.step(-0.5);  // a past of its own
      second.scheduler.load_state_dict(Json::parse(text), "scheduler.json");
      for (std::size_t i = 0; i < 2; ++i) {
        second.optimizer.param_groups()[i].options().set_lr(first.scheduler.last_lr()[i]);
      }
      EXPECT_EQ(second.scheduler.state_dict().dump(), text);
      second.go(stop, golden.at("metrics").size());
    }
  }
}

TEST(ReduceLROnPlateau, SaysWhereItStandsAndTakesNaNForTheWorst) {
  auto optimizer = optimizer_with(1.0);
  ReduceLROnPlateau scheduler(optimizer, {.factor = 0.5, .patience = 0, .cooldown = 3});
  EXPECT_EQ(scheduler.state_dict().dump(),
            R"({"base_lrs":[1.0],"best":"inf","cooldown_counter":0,"last_epoch":0,)"
            R"("last_lr":[1.0],"num_bad_epochs":0})");
  scheduler.step(0.25);
  scheduler.step(0.25);
  EXPECT_EQ(scheduler.state_dict().dump(),
            R"({"base_lrs":[1.0],"best":0.25,"cooldown_counter":3,"last_epoch":2,)"
            R"("last_lr":[0.5],"num_bad_epochs":0})");
  auto other = optimizer_with(1.0);
  ReduceLROnPlateau patient(other, {.factor = 0.5, .patience = 1});
  patient.step(std::nan(""));
  EXPECT_EQ(patient.last_lr(), Rates{1.0});
  patient.step(std::nan(""));
  EXPECT_EQ(patient.last_lr(), Rates{0.5});
}

TEST(ReduceLROnPlateau, NeedsAMetricAndOptionsInTheirRange) {
  auto optimizer = optimizer_with(1.0);
  ReduceLROnPlateau scheduler(optimizer);
  LrScheduler& any = scheduler;
  EXPECT_ERROR(any.step(), UsageError,
               "ReduceLROnPlateau::step: expected a metric, not set; hint: call step(metric)");
  EXPECT_EQ(scheduler.last_epoch(), 0);
  EXPECT_ERROR(ReduceLROnPlateau(optimizer, {.factor = 1.0}), UsageError,
               "factor: expected 0 <= factor < 1, got 1");
  EXPECT_ERROR(ReduceLROnPlateau(optimizer, {.factor = -0.1}), UsageError,
               "factor: expected 0 <= factor < 1, got -0.1");
  EXPECT_ERROR(ReduceLROnPlateau(optimizer, {.patience = -1}), UsageError,
               "patience: expected a number >= 0, got -1");
  EXPECT_ERROR(ReduceLROnPlateau(optimizer, {.cooldown = -1}), UsageError,
               "ReduceLROnPlateau cooldown: expected a number >= 0, got -1");
}

// Damaged states, and the error of each.
std::vector<std::pair<Json, std::string>> damaged_plateau_states(const Json& good) {
  std::vector<std::pair<Json, std::string>> bad;
  const auto with = [&](const char* name, const Json& value, const std::string& text) {
    bad.emplace_back(good, text).first[name] = value;
  };
  for (const auto& item : good.items()) {
    const bool has_rates = item.key() == "base_lrs" || item.key() == "last_lr";
    const std::string form = has_rates ? "an array of 1 number as" : "a ";
    bad.emplace_back(good, form).first.erase(item.key());
  }
  with("factor", 0.1,
       "only last_epoch, base_lrs, last_lr, best, cooldown_counter, num_bad_epochs, got "
       "\"factor\"");
  for (const Json& value : {Json(nullptr), Json("nan"), Json(true), Json(kInfinity)}) {
    with("best", value, "a number as \"best\", got ");
  }
  for (const char* name : {"num_bad_epochs", "cooldown_counter"}) {
    for (const Json& value : {Json(-1), Json(1.5), Json("1")}) {
      with(name, value, std::string("a whole number from 0 to 2^62 as \"") + name + "\", got ");
    }
  }
  return bad;
}

TEST(ReduceLROnPlateau, RefusesADamagedStateAndStaysAsItWas) {
  auto optimizer = optimizer_with(1.0);
  ReduceLROnPlateau scheduler(optimizer, {.patience = 2});
  scheduler.step(0.5);
  scheduler.step(0.75);
  const auto before = scheduler.state_dict();
  for (const auto& [state, text] : damaged_plateau_states(before)) {
    SCOPED_TRACE(state.dump());
    EXPECT_ERROR(scheduler.load_state_dict(state, "scheduler.json"), DataError,
                 "scheduler.json: expected " + text);
    EXPECT_EQ(scheduler.state_dict(), before);
  }
}

}  // namespace
}  // namespace ladder
