// SPDX-License-Identifier: Apache-2.0
#include "ladder/amp/grad_scaler.h"

#include <ATen/Version.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "ladder/amp/autocast.h"
#include "ladder/checkpoint/safetensors.h"
#include "ladder/core/error.h"
#include "ladder/optim/adam.h"
#include "ladder/optim/sgd.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using Json = nlohmann::json;
using Optimizer = torch::optim::Optimizer;
using OptimizerPointer = std::unique_ptr<Optimizer>;
using Tensors = std::vector<torch::Tensor>;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// --- the scripted runs of Python's scaler -----------------------------------------------

const SafetensorsFile& golden_file() {
  static const SafetensorsFile file =
      load_safetensors(LADDER_SOURCE_DIR "/tests/golden/grad_scaler.safetensors");
  return file;
}

torch::Tensor golden(const std::string& name) { return golden_file().tensors.at(name); }

GradScalerOptions scaler_options(const Json& json) {
  GradScalerOptions options;
  options.init_scale = json.value("init_scale", options.init_scale);
  options.growth_factor = json.value("growth_factor", options.growth_factor);
  options.backoff_factor = json.value("backoff_factor", options.backoff_factor);
  options.growth_interval = json.value("growth_interval", options.growth_interval);
  return options;
}

OptimizerPointer make_optimizer(const Json& json, const Tensors& parameters) {
  const double lr = json.at("lr");
  if (json.at("kind") == "AdamW") {
    return std::make_unique<AdamW>(parameters, AdamWOptions{.lr = lr});
  }
  if (json.at("fused")) {
    return std::make_unique<SGD>(parameters,
                                 SgdOptions{.lr = lr, .momentum = json.value("momentum", 0.0)});
  }
  return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(lr));
}

// One run of the file, done again; see SCALER_RUNS in make_golden.py.
class Replay {
 public:
  explicit Replay(std::string name)
      : name_(std::move(name)),
        run_(Json::parse(golden_file().metadata.at(name_))),
        parameters_{golden("initial0").clone().requires_grad_(),
                    golden("initial1").clone().requires_grad_()},
        scaler_(scaler_options(run_.at("scaler"))) {
    const auto& optimizers = run_.at("optimizers");
    for (std::size_t i = 0; i < optimizers.size(); ++i) {
      const auto owned = optimizers.size() == 1 ? parameters_ : Tensors{parameters_[i]};
      optimizers_.push_back(make_optimizer(optimizers[i], owned));
    }
  }

  void expect_equal_steps() {
    const auto skipped = golden(name_ + ".skipped");
    const auto steps = skipped.size(0);
    ASSERT_EQ(steps, 60);
    for (std::int64_t step = 1; step <= steps; ++step) {
      SCOPED_TRACE(name_ + ", step " + std::to_string(step));
      backward(step - 1);
      step_each(skipped[step - 1]);
      scaler_.update();
      expect_state(step);
    }
    EXPECT_EQ(scaler_.skipped_steps(), skipped.amax(1).sum().item<std::int64_t>());
  }

 private:
  torch::Tensor target(int loss, std::size_t parameter, std::int64_t row) const {
    const auto key = ".targets" + std::to_string(loss) + "." + std::to_string(parameter);
    return golden(name_ + key)[row];
  }

  void backward(std::int64_t row) {
    Tensors losses;
    for (int i = 0; golden_file().tensors.contains(name_ + ".targets" + std::to_string(i) + ".0");
         ++i) {
      losses.push_back(torch::mse_loss(parameters_[0], target(i, 0, row), torch::Reduction::Sum) +
                       torch::mse_loss(parameters_[1], target(i, 1, row), torch::Reduction::Sum));
    }
    for (const auto& loss : scaler_.scale(losses)) loss.backward();
  }

  void step_each(const torch::Tensor& skipped) {
    for (std::size_t i = 0; i < optimizers_.size(); ++i) {
      const auto before = parameters_[i].detach().clone();
      if (run_.contains("clip")) {
        scaler_.unscale_(*optimizers_[i]);
        torch::nn::utils::clip_grad_norm_(parameters_, run_.at("clip"));
      }
      const auto result = scaler_.step(*optimizers_[i]);
      const bool expected = skipped[static_cast<std::int64_t>(i)].item<bool>();
      EXPECT_EQ(result.taken(), !expected);
      EXPECT_EQ(torch::equal(before, parameters_[i]), expected);
      optimizers_[i]->zero_grad();
    }
  }

  void expect_state(std::int64_t step) const {
    EXPECT_EQ(scaler_.get_scale(), golden(name_ + ".scale")[step - 1].item<double>());
    EXPECT_EQ(scaler_.state_dict().at("_growth_tracker"),
              golden(name_ + ".growth_tracker")[step - 1].item<std::int64_t>());
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const auto key = name_ + ".step" + std::to_string(step) + ".param" + std::to_string(i);
      if (!golden_file().tensors.contains(key)) continue;
      EXPECT_TRUE(torch::equal(parameters_[i], golden(key))) << key;
    }
  }

  std::string name_;
  Json run_;
  Tensors parameters_;
  std::vector<OptimizerPointer> optimizers_;
  GradScaler scaler_;
};

// Inf and NaN in gradients, growth, fused and other optimizers, two losses, two optimizers,
// clipping: scale, tracker and skipped steps after each step, weights to the last bit.
TEST(GradScaler, EqualsPythonsAtEachStep) {
  ASSERT_EQ(at::get_cpu_capability(), "DEFAULT")
      << "the golden numbers are those of the plain kernels: set ATEN_CPU_CAPABILITY=default";
  int replayed = 0;
  for (const auto& [name, run] : golden_file().metadata) {
    if (!run.starts_with("{\"optimizers\"")) continue;
    Replay(name).expect_equal_steps();
    ++replayed;
  }
  EXPECT_EQ(replayed, 7);
}

// --- one weight -------------------------------------------------------------------------

torch::Tensor weight_of(double value) { return torch::full({2}, value, torch::requires_grad()); }

// All whose steps differ: the kernels that divide themselves, with and without a state of their
// own, and an optimizer that knows nothing of scalers.
constexpr std::size_t kKinds = 4;
OptimizerPointer optimizer_of_kind(std::size_t kind, const Tensors& weights) {
  if (kind == 0) return std::make_unique<SGD>(weights, SgdOptions{.lr = 0.1});
  if (kind == 1) return std::make_unique<AdamW>(weights, AdamWOptions{.lr = 0.1});
  const SgdOptions with_momentum = {.lr = 0.1, .momentum = 0.9, .dampening = 0.5};
  if (kind == 2) return std::make_unique<SGD>(weights, with_momentum);
  using torch::optim::SGDOptions;
  return std::make_unique<torch::optim::SGD>(weights, SGDOptions(0.1).momentum(0.9));
}

void for_each_kind(const std::function<void(std::size_t kind)>& test) {
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    SCOPED_TRACE("kind " + std::to_string(kind));
    test(kind);
  }
}

// A weight, its optimizer and a scaler.
struct Trial {
  explicit Trial(GradScalerOptions options = {}, std::size_t kind = 0)
      : optimizer(optimizer_of_kind(kind, {weight})), scaler(options) {}

  // Leaves `gradient` times the scale in the weight.
  void backward(double gradient) {
    weight.mutable_grad() = torch::Tensor();
    scaler.scale((weight * gradient).sum()).backward();
  }
  bool step() { return scaler.step(*optimizer).taken(); }
  // A whole iteration.
  bool go(double gradient) {
    backward(gradient);
    const bool taken = step();
    scaler.update();
    return taken;
  }
  void go(const std::vector<double>& gradients) {
    for (const double gradient : gradients) go(gradient);
  }

  torch::Tensor weight = weight_of(1.0);
  OptimizerPointer optimizer;
  GradScaler scaler;
};

bool all_equal(const torch::Tensor& tensor, double value) {
  return torch::equal(tensor, torch::full_like(tensor, value));
}

TEST(GradScaler, BeginsAsPythonsAndMultipliesLossesByTheScale) {
  const GradScaler by_default;
  EXPECT_EQ(by_default.state_dict(), Json::parse(golden_file().metadata.at("state_dict")));
  EXPECT_TRUE(by_default.is_enabled());
  EXPECT_EQ(by_default.skipped_steps(), 0);
  GradScaler scaler({.init_scale = 8.0});
  EXPECT_EQ(scaler.get_scale(), 8.0);
  EXPECT_EQ(scaler.scale(torch::tensor(0.5F)).item<float>(), 4.0F);
  const auto both = scaler.scale(Tensors{torch::tensor(1.0F), torch::tensor(-2.0F)});
  ASSERT_EQ(both.size(), 2U);
  EXPECT_EQ(both[0].item<float>(), 8.0F);
  EXPECT_EQ(both[1].item<float>(), -16.0F);
}

// 2^16 changes exponents alone. So the steps between the skipped ones are those of a run that
// never saw a scaler: also the first, which comes after a skipped one.
TEST(GradScaler, AScaleThatIsAPowerOfTwoLeavesNoTraceInTheWeights) {
  for_each_kind([](std::size_t kind) {
    Trial scaled({.growth_interval = 2}, kind);
    const auto plain = weight_of(1.0);
    const auto of_plain = optimizer_of_kind(kind, {plain});
    for (const double gradient : {kInf, 0.3, -0.7, kNan, -kInf, 0.1, 0.9, -kInf, 0.2}) {
      EXPECT_EQ(scaled.go(gradient), std::isfinite(gradient));
      plain.mutable_grad() = torch::full({2}, gradient);
      if (std::isfinite(gradient)) of_plain->step();
      EXPECT_TRUE(torch::equal(scaled.weight, plain)) << gradient;
    }
    EXPECT_EQ(scaled.scaler.get_scale(), 65536.0 / 16 * 4);  // four bad steps, twice two good ones
    using Numbers = std::map<std::string, double>;
    EXPECT_EQ(scaled.scaler.metrics(),
              (Numbers{{"loss_scale", 65536.0 / 16 * 4}, {"skipped_steps", 4.0}}));
  });
}

TEST(GradScaler, UnscaleDividesOnceAndStepDoesNotAgain) {
  for_each_kind([](std::size_t kind) {
    Trial looked_at({}, kind);
    const auto not_looked_at = weight_of(1.0);
    const auto second = optimizer_of_kind(kind, {not_looked_at});
    looked_at.backward(0.25);
    looked_at.scaler.scale((not_looked_at * 0.25).sum()).backward();
    looked_at.scaler.unscale_(*looked_at.optimizer);
    EXPECT_TRUE(all_equal(looked_at.weight.grad(), 0.25));
    EXPECT_TRUE(all_equal(not_looked_at.grad(), 0.25 * 65536));  // another optimizer's
    EXPECT_TRUE(looked_at.step());
    EXPECT_TRUE(looked_at.scaler.step(*second).taken());
    EXPECT_TRUE(torch::equal(looked_at.weight, not_looked_at));
    EXPECT_TRUE(all_equal(not_looked_at.grad(), 0.25));  // left divided
    looked_at.scaler.update();
  });
}

// What was found stays found, whatever becomes of the gradients before the step.
TEST(GradScaler, StepIsSkippedForAnInfThatUnscaleFoundAndClippingTookAway) {
  for_each_kind([](std::size_t kind) {
    Trial trial({}, kind);
    trial.backward(kInf);
    trial.scaler.unscale_(*trial.optimizer);
    trial.weight.mutable_grad().fill_(1.0);
    EXPECT_FALSE(trial.step());
    EXPECT_TRUE(all_equal(trial.weight, 1.0));
    trial.scaler.update();
    EXPECT_EQ(trial.scaler.get_scale(), 32768.0);
  });
}

TEST(GradScaler, OneBadElementOfOneParameterSkipsAll) {
  const Tensors weights = {weight_of(1.0), weight_of(2.0)};
  SGD optimizer(weights, {.lr = 0.1});
  GradScaler scaler;
  const auto factors = torch::tensor({1.0F, std::numeric_limits<float>::infinity()});
  scaler.scale((weights[0] + weights[1] * factors).sum()).backward();
  EXPECT_FALSE(scaler.step(optimizer).taken());
  EXPECT_TRUE(all_equal(weights[0], 1.0));
  EXPECT_TRUE(all_equal(weights[1], 2.0));
}

// Python's scale ends at 0, with which it skips every later step.
TEST(GradScaler, KeepsAScaleToDivideByAfterAnyNumberOfSkippedSteps) {
  const auto weight = torch::ones({1}, torch::requires_grad());
  SGD optimizer({weight}, {.lr = 1.0});
  GradScaler scaler({.init_scale = 1.0});
  const auto step = [&](double gradient) {
    scaler.scale(weight.sum());
    weight.mutable_grad() = torch::full({1}, gradient * scaler.get_scale());
    scaler.step(optimizer);
    scaler.update();
  };
  for (int i = 0; i < 200; ++i) step(kNan);
  EXPECT_GT(scaler.get_scale(), 0.0);
  scaler.load_state_dict(scaler.state_dict(), "file");
  step(3.0);
  EXPECT_EQ(weight.item<double>(), -2.0);
}

TEST(GradScaler, LeavesAParameterWithoutGradientAlone) {
  for_each_kind([](std::size_t kind) {
    const auto unused = weight_of(1.0);
    Trial trial;
    trial.optimizer = optimizer_of_kind(kind, {unused, trial.weight});
    EXPECT_TRUE(trial.go(1.0));
    EXPECT_TRUE(all_equal(unused, 1.0));
    EXPECT_FALSE(all_equal(trial.weight, 1.0));
  });
}

// The answer is on its way to the host while the GPU already has the next step.
TEST(GradScalerOnAGpu, TellsByAnEventWhetherAStepWasTaken) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no GPU";
  auto weight = torch::ones({2}, torch::TensorOptions(torch::kCUDA).requires_grad(true));
  SGD optimizer({weight}, {.lr = 1.0});
  GradScaler scaler({.init_scale = 8.0});
  std::vector<StepResult> results;
  for (const double gradient : {1.0, kInf, 1.0, kNan}) {
    optimizer.zero_grad();
    scaler.scale((weight * gradient).sum()).backward();
    results.push_back(scaler.step(optimizer));
    results.back().prefetch();
    scaler.update();
  }
  std::vector<bool> taken;
  for (const auto& result : results) taken.push_back(result.taken());
  EXPECT_EQ(taken, (std::vector<bool>{true, false, true, false}));
  EXPECT_TRUE(torch::equal(weight.detach().cpu(), torch::full({2}, -1.0)));
  EXPECT_EQ(scaler.skipped_steps(), 2);
  EXPECT_EQ(scaler.get_scale(), 2.0);
}

TEST(StepResult, OfAStepThatNobodyScaledIsTaken) {
  EXPECT_TRUE(StepResult({}).taken());
  EXPECT_TRUE(StepResult(torch::tensor(0.0F)).taken());
  EXPECT_FALSE(StepResult(torch::tensor(1.0F)).taken());
}

// --- disabled ---------------------------------------------------------------------------

TEST(GradScaler, DisabledStepsAndDoesNothingElse) {
  for_each_kind([](std::size_t kind) {
    for (const double gradient : {0.3, kInf}) {
      Trial trial({.enabled = false}, kind);
      const auto plain = weight_of(1.0);
      const auto of_plain = optimizer_of_kind(kind, {plain});
      const auto loss = (trial.weight * gradient).sum();
      EXPECT_TRUE(trial.scaler.scale(loss).is_same(loss));
      EXPECT_TRUE(trial.scaler.scale(Tensors{loss}).at(0).is_same(loss));
      loss.backward();
      plain.mutable_grad() = torch::full({2}, gradient);
      for (int step = 0; step < 2; ++step) {  // nothing is misuse
        trial.scaler.unscale_(*trial.optimizer);
        EXPECT_TRUE(trial.step());
        of_plain->step();
      }
      trial.scaler.update();
      trial.scaler.update();
      trial.scaler.update_later();
      EXPECT_EQ(trial.scaler.skipped_steps(), 0);
      EXPECT_TRUE(torch::allclose(trial.weight, plain, 0, 0, /*equal_nan=*/true)) << gradient;
    }
  });
}

TEST(GradScaler, DisabledHasNoStateAndTakesNone) {
  GradScaler scaler({.enabled = false});
  scaler.update(-1.0);
  scaler.load_state_dict(Json::parse("[1]"), "state");
  scaler.plan_load(Json::parse("[1]"), "state")();
  load_scaler(scaler, "/no/such/file");
  EXPECT_FALSE(scaler.is_enabled());
  EXPECT_EQ(scaler.get_scale(), 1.0);
  EXPECT_EQ(scaler.skipped_steps(), 0);
  EXPECT_TRUE(scaler.metrics().empty());
  EXPECT_EQ(scaler.state_dict(), Json::object());
  EXPECT_TRUE(metadata_of(scaler).empty());
}

// --- misuse -----------------------------------------------------------------------------

using Call = void (*)(GradScaler&, Optimizer&);
const Call kUnscale = [](GradScaler& scaler, Optimizer& optimizer) { scaler.unscale_(optimizer); };
const Call kStep = [](GradScaler& scaler, Optimizer& optimizer) { scaler.step(optimizer); };
const Call kUpdate = [](GradScaler& scaler, Optimizer&) { scaler.update(); };
const Call kZeroGrad = [](GradScaler&, Optimizer& optimizer) { optimizer.zero_grad(); };

// Calls after one backward, of which the last is refused.
void misuse(const std::vector<Call>& calls, const std::string& text) {
  for_each_kind([&](std::size_t kind) {
    Trial trial({}, kind);
    trial.backward(1.0);
    for (std::size_t i = 0; i + 1 < calls.size(); ++i) calls[i](trial.scaler, *trial.optimizer);
    EXPECT_ERROR(calls.back()(trial.scaler, *trial.optimizer), UsageError, text);
  });
}

TEST(GradScaler, RefusesToStepBeforeTheFirstScale) {
  for_each_kind([](std::size_t kind) {
    Trial trial({}, kind);
    trial.weight.mutable_grad() = torch::ones({2});
    EXPECT_ERROR(trial.step(), UsageError, "GradScaler::step: no loss was scaled with scale()");
    EXPECT_ERROR(trial.scaler.unscale_(*trial.optimizer), UsageError,
                 "GradScaler::unscale_: no loss was scaled with scale()");
    EXPECT_ERROR(trial.scaler.update(), UsageError, "no step since the last update");
    EXPECT_TRUE(all_equal(trial.weight, 1.0));
  });
}

TEST(GradScaler, RefusesToUnscaleTwice) {
  misuse({kUnscale, kUnscale}, "unscale_ twice for one optimizer");
}

TEST(GradScaler, RefusesCallsInAnotherOrder) {
  misuse({kStep, kUnscale}, "unscale_ after step");
  misuse({kStep, kStep}, "step twice for one optimizer");
  misuse({kUpdate}, "GradScaler::update: no step since the last update");
  misuse({kStep, kUpdate, kUpdate}, "GradScaler::update: no step since the last update");
  misuse({kZeroGrad, kStep}, "no parameter of this optimizer has a gradient");
  misuse({kZeroGrad, kUnscale}, "no parameter of this optimizer has a gradient");
}

TEST(GradScaler, GoesOnAfterAMisuse) {
  Trial trial({.growth_interval = 1});
  trial.backward(1.0);
  trial.scaler.unscale_(*trial.optimizer);
  EXPECT_ERROR(trial.scaler.unscale_(*trial.optimizer), UsageError, "unscale_ twice");
  EXPECT_TRUE(trial.step());
  EXPECT_ERROR(trial.step(), UsageError, "step twice");
  trial.scaler.update();
  EXPECT_TRUE(all_equal(trial.weight, 1.0F - 0.1F));
  EXPECT_EQ(trial.scaler.get_scale(), 2 * 65536.0);
}

TEST(GradScaler, RefusesToUnscaleGradientsInFloat16) {
  const std::string text = "gradients in float16 cannot be unscaled";
  for_each_kind([&](std::size_t kind) {
    const auto weight = torch::ones({2}, torch::dtype(torch::kFloat16).requires_grad(true));
    const auto optimizer = optimizer_of_kind(kind, {weight});
    GradScaler scaler({.init_scale = 4.0});
    scaler.scale(weight.sum()).backward();
    EXPECT_ERROR(scaler.unscale_(*optimizer), UsageError, text);
    if (kind == kKinds - 1) EXPECT_ERROR(scaler.step(*optimizer), UsageError, text);
    EXPECT_TRUE(all_equal(weight, 1.0));
    EXPECT_TRUE(all_equal(weight.grad(), 4.0));
  });
}

// --- options, and a scale of one's own --------------------------------------------------

TEST(GradScaler, RefusesOptionsOutsideTheirRange) {
  for (const double scale : {0.0, -1.0, kInf, kNan, 1e300, 1e-60, 1e-40}) {
    EXPECT_ERROR(GradScaler({.init_scale = scale}), UsageError,
                 "GradScaler: expected a finite scale > 0, got 'scale ");
  }
  for (const double factor : {1.0, 0.5, -2.0, kNan}) {
    EXPECT_ERROR(GradScaler({.growth_factor = factor}), UsageError, "expected growth_factor > 1");
  }
  for (const double factor : {1.0, 0.0, -0.5, 2.0, kNan}) {
    EXPECT_ERROR(GradScaler({.backoff_factor = factor}), UsageError,
                 "expected backoff_factor between 0 and 1");
  }
  for (const std::int64_t interval : {0, -1}) {
    EXPECT_ERROR(GradScaler({.growth_interval = interval}), UsageError,
                 "expected growth_interval > 0, got 'scale 65536, growth 2 every " +
                     std::to_string(interval) + ", backoff 0.5");
  }
}

TEST(GradScaler, UpdateTakesAScaleAndKeepsTheTrackerAsPython) {
  Trial trial;
  trial.scaler.update(2.0);  // before the first loss
  EXPECT_EQ(trial.scaler.get_scale(), 2.0);
  EXPECT_EQ(trial.scaler.scale(torch::tensor(1.0F)).item<float>(), 2.0F);
  trial.go(1.0);
  trial.backward(kInf);
  EXPECT_FALSE(trial.step());
  trial.scaler.update(128.0);
  EXPECT_EQ(trial.scaler.get_scale(), 128.0);
  EXPECT_EQ(trial.scaler.skipped_steps(), 1);
  EXPECT_EQ(trial.scaler.state_dict().at("_growth_tracker"), 1);
  trial.backward(1.0);
  EXPECT_TRUE(all_equal(trial.weight.grad(), 128.0));
  EXPECT_TRUE(trial.step());  // a new iteration
}

TEST(GradScaler, UpdateRefusesAScaleThatIsNone) {
  GradScaler used;
  used.scale(torch::tensor(1.0F));
  GradScaler fresh;
  for (GradScaler* scaler : {&fresh, &used}) {
    for (const double scale : {0.0, -1.0, kInf, kNan, 1e300, 1e-60}) {
      EXPECT_ERROR(scaler->update(scale), UsageError, "update: expected a finite scale > 0, got ");
    }
    EXPECT_EQ(scaler->get_scale(), 65536.0);
  }
}

// --- state ------------------------------------------------------------------------------

const GradScalerOptions kOddOptions = {
    .init_scale = 1000.0, .growth_factor = 3.0, .backoff_factor = 0.3, .growth_interval = 4};

TEST(GradScaler, GoesOnFromItsState) {
  for (const bool used : {false, true}) {
    Trial original(kOddOptions);
    original.go({1.0, kInf, 1.0, 1.0, 1.0});
    const auto text = original.scaler.state_dict().dump();
    EXPECT_EQ(Json::parse(text), (Json{{"scale", 300.0},
                                       {"growth_factor", 3.0},
                                       {"backoff_factor", 0.3},
                                       {"growth_interval", 4},
                                       {"_growth_tracker", 3}}));
    Trial resumed;  // with other options
    if (used) resumed.go({kInf, 1.0});
    const auto before = resumed.scaler.state_dict();
    const auto apply = resumed.scaler.plan_load(Json::parse(text), "state");
    EXPECT_EQ(resumed.scaler.state_dict(), before) << "a plan changes nothing";
    if (used) apply();
    if (!used) resumed.scaler.load_state_dict(Json::parse(text), "state");
    for (int step = 0; step < 6; ++step) {
      EXPECT_EQ(resumed.scaler.state_dict(), original.scaler.state_dict()) << step;
      original.go(0.5);
      resumed.go(0.5);
    }
    EXPECT_EQ(resumed.scaler.get_scale(), 2700.0);            // it grew, by the factor of the state
    EXPECT_EQ(resumed.scaler.skipped_steps(), used ? 1 : 0);  // of this process
  }
}

// States, and the error of each.
std::vector<std::pair<Json, std::string>> damaged_states() {
  const auto good = GradScaler().state_dict();
  std::vector<std::pair<Json, std::string>> bad = {
      {Json::object(), R"(expected a number as "scale", got none)"},
      {Json::array({1, 2}), "expected an object, got [1,2]"},
      {Json(nullptr), "expected an object, got null"},
      {Json(Json::value_t::discarded), "expected an object, got"}};
  const auto with = [&](const char* name, const Json& value, const std::string& text) {
    bad.emplace_back(good, text).first[name] = value;
  };
  for (const auto& item : good.items()) {
    const bool whole = item.value().is_number_integer();
    const auto expected = std::string(whole ? "a whole number from 0 to 2^62" : "a number") +
                          " as \"" + item.key() + "\", got ";
    for (const Json& value : {Json("1"), Json(nullptr), Json(true)}) {
      with(item.key().c_str(), value, expected);
    }
    auto without = good;
    without.erase(item.key());
    bad.emplace_back(without, "state: expected " + expected + "none");
  }
  for (const double scale : {0.0, -1.0, 1e300, 1e-60}) with("scale", scale, "a finite scale > 0");
  with("growth_factor", 1.0, "growth_factor > 1");
  with("backoff_factor", 1.0, "backoff_factor between 0 and 1");
  with("growth_interval", 0, "growth_interval > 0");
  with("growth_interval", 2.5, R"(a whole number from 0 to 2^62 as "growth_interval", got 2.5)");
  with("_growth_tracker", -1, R"(a whole number from 0 to 2^62 as "_growth_tracker", got -1)");
  with("_growth_tracker", std::int64_t{1} << 31, "_growth_tracker from 0 to 2147483647");
  return bad;
}

TEST(GradScaler, RefusesADamagedStateAndStaysAsItWas) {
  Trial fresh(kOddOptions);
  Trial used(kOddOptions);
  used.go({1.0, 1.0, kInf, 1.0});
  for (GradScaler* scaler : {&fresh.scaler, &used.scaler}) {
    const auto before = scaler->state_dict();
    for (const auto& [state, text] : damaged_states()) {
      SCOPED_TRACE(state.is_discarded() ? "discarded" : state.dump());
      EXPECT_ERROR(scaler->load_state_dict(state, "state"), DataError, text);
      EXPECT_ERROR(static_cast<void>(scaler->plan_load(state, "state")), DataError, text);
      EXPECT_EQ(scaler->state_dict(), before);
    }
  }
}

// --- beside the weights -----------------------------------------------------------------

TEST(GradScaler, TravelsInTheFileOfTheWeights) {
  const TemporaryFolder folder;
  const auto path = folder.file("model.safetensors");
  const torch::nn::Linear model(2, 2);
  Trial saved(kOddOptions);
  saved.go({1.0, 1.0, kInf, 1.0});
  save_model(*model, path, metadata_of(saved.scaler));
  Trial loaded;
  load_scaler(loaded.scaler, path);
  EXPECT_EQ(loaded.scaler.state_dict(), saved.scaler.state_dict());
  torch::nn::Linear other(2, 2);
  load_model(*other, path);  // as without a scaler
  EXPECT_TRUE(torch::equal(other->weight, model->weight));
  save_model(*model, path, metadata_of(GradScaler({.enabled = false})));
  EXPECT_FALSE(load_safetensors(path).metadata.contains("scaler"));
  load_scaler(loaded.scaler, path);  // without a state in the file it stays as it is
  EXPECT_EQ(loaded.scaler.state_dict(), saved.scaler.state_dict());
}

TEST(GradScaler, RefusesAFileThatIsDamaged) {
  const TemporaryFolder folder;
  const auto path = folder.file("model.safetensors");
  GradScaler scaler;
  EXPECT_ERROR(load_scaler(scaler, path), DataError, path);
  const std::string no_json = ": expected valid JSON, got an error at byte ";
  const std::pair<const char*, std::string> cases[] = {{"", no_json},
                                                       {R"({"scale": 1)", no_json},
                                                       {"[]", ": expected a"},
                                                       {"{}", ": expected a"},
                                                       {R"({"scale": "big"})", ": expected a"}};
  for (const auto& [text, message] : cases) {
    save_model(*torch::nn::Linear(2, 2), path, {{"scaler", text}});
    EXPECT_ERROR(load_scaler(scaler, path), DataError, path + message);
  }
  folder.write("model.safetensors", "short");
  EXPECT_ERROR(load_scaler(scaler, path), DataError, path);
  EXPECT_EQ(scaler.state_dict(), GradScaler().state_dict());
}

// --- the point of it --------------------------------------------------------------------

// A step of a layer that computes in float16, with gradients of 1e-8 at its output.
torch::Tensor weight_after_step(GradScalerOptions options) {
  const auto weight = torch::ones({4, 1}, torch::requires_grad());
  AdamW optimizer({weight}, {.lr = 0.125, .eps = 1e-12, .weight_decay = 0.0});
  GradScaler scaler(options);
  torch::Tensor output;
  {
    const Autocast autocast(torch::kCPU, torch::kFloat16);
    output = torch::mm(torch::ones({3, 4}), weight);
  }
  EXPECT_EQ(output.scalar_type(), torch::kFloat16);
  scaler.scale((output.to(torch::kFloat32) * 1e-8).sum()).backward();
  EXPECT_TRUE(scaler.step(optimizer).taken());
  return weight.detach();
}

TEST(GradScaler, KeepsGradientsAliveThatFloat16Loses) {
  EXPECT_TRUE(all_equal(weight_after_step({.enabled = false}), 1.0));  // the gradient was 0
  EXPECT_TRUE(torch::allclose(weight_after_step({}), torch::full({4, 1}, 1.0 - 0.125), 1e-3));
}

}  // namespace
}  // namespace ladder
