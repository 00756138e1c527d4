// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/reduce_lr_on_plateau.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/optim/fused_optimizer.h"
#include "ladder/optim/sgd.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/optimizers.h"

namespace ladder {
namespace {

using Json = nlohmann::json;
using Rates = std::vector<double>;

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
