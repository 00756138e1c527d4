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
std::vector<OptimizerPointer> one_of_each(const Tensors& weights) {
  std::vector<OptimizerPointer> optimizers;
  optimizers.push_back(std::make_unique<AdamW>(weights, AdamWOptions{.lr = 0.1}));
  optimizers.push_back(std::make_unique<SGD>(weights, SgdOptions{.lr = 0.1}));
  optimizers.push_back(
      std::make_unique<SGD>(weights, SgdOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.5}));
  optimizers.push_back(
      std::make_unique<torch::optim::SGD>(weights, torch::optim::SGDOptions(0.1).momentum(0.9)));
  return optimizers;
}
constexpr std::size_t kKinds = 4;

// Leaves `gradient` times the scale in the weight.
void run_backward(GradScaler& scaler, const torch::Tensor& weight, double gradient) {
  weight.mutable_grad() = torch::Tensor();
  scaler.scale((weight * gradient).sum()).backward();
}

bool run_step(GradScaler& scaler, Optimizer& optimizer, const torch::Tensor& weight,
              double gradient) {
  run_backward(scaler, weight, gradient);
  const bool taken = scaler.step(optimizer).taken();
  scaler.update();
  return taken;
}

bool all_equal(const torch::Tensor& tensor, double value) {
  return torch::equal(tensor, torch::full_like(tensor, value));
}

TEST(GradScaler, MultipliesLossesByTheScale) {
  GradScaler scaler({.init_scale = 8.0});
  EXPECT_EQ(scaler.get_scale(), 8.0);
  EXPECT_EQ(scaler.scale(torch::tensor(0.5F)).item<float>(), 4.0F);
  const auto both = scaler.scale(Tensors{torch::tensor(1.0F), torch::tensor(-2.0F)});
  ASSERT_EQ(both.size(), 2U);
  EXPECT_EQ(both[0].item<float>(), 8.0F);
  EXPECT_EQ(both[1].item<float>(), -16.0F);
}

TEST(GradScaler, BeginsAsPythons) {
  const GradScaler scaler;
  EXPECT_EQ(scaler.state_dict(), Json::parse(golden_file().metadata.at("state_dict")));
  EXPECT_TRUE(scaler.is_enabled());
  EXPECT_EQ(scaler.skipped_steps(), 0);
}

// 2^16 changes exponents alone. So the steps between the skipped ones are those of a run that
// never saw a scaler: also the first, which comes after a skipped one.
TEST(GradScaler, AScaleThatIsAPowerOfTwoLeavesNoTraceInTheWeights) {
  const std::vector<double> gradients = {kInf, 0.3, -0.7, kNan, -kInf, 0.1, 0.9, -kInf, 0.2};
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    const auto scaled = weight_of(1.0);
    const auto plain = weight_of(1.0);
    const auto of_scaled = std::move(one_of_each({scaled})[kind]);
    const auto of_plain = std::move(one_of_each({plain})[kind]);
    GradScaler scaler({.growth_interval = 2});
    for (const double gradient : gradients) {
      EXPECT_EQ(run_step(scaler, *of_scaled, scaled, gradient), std::isfinite(gradient));
      plain.mutable_grad() = torch::full({2}, gradient);
      if (std::isfinite(gradient)) of_plain->step();
      EXPECT_TRUE(torch::equal(scaled, plain)) << "kind " << kind << ", gradient " << gradient;
    }
    EXPECT_EQ(scaler.skipped_steps(), 4);
    EXPECT_EQ(scaler.get_scale(), 65536.0 / 16 * 4);  // four bad steps, twice two good ones
  }
}

TEST(GradScaler, UnscaleDividesOnceAndStepDoesNotAgain) {
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    const auto looked_at = weight_of(1.0);
    const auto not_looked_at = weight_of(1.0);
    const auto first = std::move(one_of_each({looked_at})[kind]);
    const auto second = std::move(one_of_each({not_looked_at})[kind]);
    GradScaler scaler;
    run_backward(scaler, looked_at, 0.25);
    run_backward(scaler, not_looked_at, 0.25);
    scaler.unscale_(*first);
    EXPECT_TRUE(all_equal(looked_at.grad(), 0.25));
    EXPECT_TRUE(all_equal(not_looked_at.grad(), 0.25 * 65536));  // another optimizer's
    EXPECT_TRUE(scaler.step(*first).taken());
    EXPECT_TRUE(scaler.step(*second).taken());
    EXPECT_TRUE(torch::equal(looked_at, not_looked_at)) << "kind " << kind;
    EXPECT_TRUE(all_equal(not_looked_at.grad(), 0.25));  // left divided
    scaler.update();
  }
}

// What was found stays found, whatever becomes of the gradients before the step.
TEST(GradScaler, StepIsSkippedForAnInfThatUnscaleFoundAndClippingTookAway) {
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    const auto weight = weight_of(1.0);
    const auto optimizer = std::move(one_of_each({weight})[kind]);
    GradScaler scaler;
    run_backward(scaler, weight, kInf);
    scaler.unscale_(*optimizer);
    weight.mutable_grad().fill_(1.0);
    EXPECT_FALSE(scaler.step(*optimizer).taken());
    EXPECT_TRUE(all_equal(weight, 1.0)) << "kind " << kind;
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 32768.0);
  }
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
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    const auto used = weight_of(1.0);
    const auto unused = weight_of(1.0);
    const auto optimizer = std::move(one_of_each({unused, used})[kind]);
    GradScaler scaler;
    EXPECT_TRUE(run_step(scaler, *optimizer, used, 1.0));
    EXPECT_TRUE(all_equal(unused, 1.0));
    EXPECT_FALSE(all_equal(used, 1.0));
  }
}

TEST(GradScaler, CountsAnIterationWithTwoSkippedOptimizersOnce) {
  const auto weight = weight_of(1.0);
  SGD first({weight}, {.lr = 0.1});
  SGD second({weight}, {.lr = 0.1});
  GradScaler scaler;
  run_backward(scaler, weight, kNan);
  EXPECT_FALSE(scaler.step(first).taken());
  EXPECT_FALSE(scaler.step(second).taken());
  scaler.update();
  EXPECT_EQ(scaler.skipped_steps(), 1);
  EXPECT_EQ(scaler.get_scale(), 32768.0);
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

TEST(GradScaler, GivesItsNumbersForTheRecord) {
  const auto weight = weight_of(1.0);
  SGD optimizer({weight}, {.lr = 0.1});
  GradScaler scaler({.init_scale = 4.0});
  using Numbers = std::map<std::string, double>;
  EXPECT_EQ(scaler.metrics(), (Numbers{{"loss_scale", 4.0}, {"skipped_steps", 0.0}}));
  run_step(scaler, optimizer, weight, kInf);
  run_step(scaler, optimizer, weight, 1.0);
  EXPECT_EQ(scaler.metrics(), (Numbers{{"loss_scale", 2.0}, {"skipped_steps", 1.0}}));
}

TEST(StepResult, OfAStepThatNobodyScaledIsTaken) {
  EXPECT_TRUE(StepResult({}).taken());
  EXPECT_TRUE(StepResult(torch::tensor(0.0F)).taken());
  EXPECT_FALSE(StepResult(torch::tensor(1.0F)).taken());
}

// --- disabled ---------------------------------------------------------------------------

TEST(GradScaler, DisabledStepsAndDoesNothingElse) {
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    const auto weight = weight_of(1.0);
    const auto plain = weight_of(1.0);
    const auto optimizer = std::move(one_of_each({weight})[kind]);
    const auto of_plain = std::move(one_of_each({plain})[kind]);
    GradScaler scaler({.enabled = false});
    const auto loss = (weight * 0.3).sum();
    EXPECT_TRUE(scaler.scale(loss).is_same(loss));
    EXPECT_TRUE(scaler.scale(Tensors{loss}).at(0).is_same(loss));
    loss.backward();
    plain.mutable_grad() = torch::full({2}, 0.3);
    for (int step = 0; step < 2; ++step) {  // nothing is misuse
      scaler.unscale_(*optimizer);
      EXPECT_TRUE(scaler.step(*optimizer).taken());
      of_plain->step();
    }
    scaler.update();
    scaler.update();
    EXPECT_TRUE(torch::equal(weight, plain)) << "kind " << kind;
  }
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

TEST(GradScaler, DisabledLetsAnInfThrough) {
  const auto weight = weight_of(1.0);
  SGD optimizer({weight}, {.lr = 0.1});
  GradScaler scaler({.enabled = false});
  EXPECT_TRUE(run_step(scaler, optimizer, weight, kInf));
  EXPECT_TRUE(all_equal(weight, -kInf));
}

// --- misuse -----------------------------------------------------------------------------

// A scaler after one backward, and an optimizer of each kind to misuse it with.
void misuse(const std::function<void(GradScaler&, Optimizer&)>& wrong, const std::string& text) {
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    SCOPED_TRACE("kind " + std::to_string(kind));
    const auto weight = weight_of(1.0);
    const auto optimizer = std::move(one_of_each({weight})[kind]);
    GradScaler scaler;
    run_backward(scaler, weight, 1.0);
    EXPECT_ERROR(wrong(scaler, *optimizer), UsageError, text);
  }
}

TEST(GradScaler, RefusesToStepBeforeTheFirstScale) {
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    const auto weight = weight_of(1.0);
    weight.mutable_grad() = torch::ones({2});
    const auto optimizer = std::move(one_of_each({weight})[kind]);
    GradScaler scaler;
    EXPECT_ERROR(scaler.step(*optimizer), UsageError,
                 "GradScaler::step: no loss was scaled with scale() before; "
                 "hint: scaler.scale(loss).backward() instead of loss.backward()");
    EXPECT_ERROR(scaler.unscale_(*optimizer), UsageError,
                 "GradScaler::unscale_: no loss was scaled with scale() before");
    EXPECT_TRUE(all_equal(weight, 1.0));
  }
}

TEST(GradScaler, RefusesToUnscaleTwice) {
  misuse(
      [](GradScaler& scaler, Optimizer& optimizer) {
        scaler.unscale_(optimizer);
        scaler.unscale_(optimizer);
      },
      "GradScaler: unscale_ twice for one optimizer: the gradients would be divided twice; hint: "
      "call it once between backward and step");
}

TEST(GradScaler, RefusesToUnscaleAfterStep) {
  misuse(
      [](GradScaler& scaler, Optimizer& optimizer) {
        scaler.step(optimizer);
        scaler.unscale_(optimizer);
      },
      "GradScaler: unscale_ after step: step has divided the gradients already; hint: call "
      "unscale_ before step");
}

TEST(GradScaler, RefusesToStepTwiceWithoutAnUpdate) {
  misuse(
      [](GradScaler& scaler, Optimizer& optimizer) {
        scaler.step(optimizer);
        scaler.step(optimizer);
      },
      "GradScaler: step twice for one optimizer in one iteration; hint: call scaler.update() after "
      "the step");
}

TEST(GradScaler, RefusesAnOptimizerWithoutAnyGradient) {
  const std::string text =
      "GradScaler: no parameter of this optimizer has a gradient; hint: call "
      "scaler.scale(loss).backward() first";
  misuse(
      [](GradScaler& scaler, Optimizer& optimizer) {
        optimizer.zero_grad();
        scaler.step(optimizer);
      },
      text);
  misuse(
      [](GradScaler& scaler, Optimizer& optimizer) {
        optimizer.zero_grad();
        scaler.unscale_(optimizer);
      },
      text);
}

TEST(GradScaler, RefusesToUpdateWithoutAStep) {
  const std::string text =
      "GradScaler::update: no step since the last update; hint: "
      "scaler.step(optimizer)";
  GradScaler fresh;
  EXPECT_ERROR(fresh.update(), UsageError, text);
  misuse([](GradScaler& scaler, Optimizer&) { scaler.update(); }, text);
  misuse(
      [](GradScaler& scaler, Optimizer& optimizer) {
        scaler.step(optimizer);
        scaler.update();
        scaler.update();
      },
      text);
}

TEST(GradScaler, GoesOnAfterAMisuse) {
  const auto weight = weight_of(1.0);
  SGD optimizer({weight}, {.lr = 0.1});
  GradScaler scaler({.growth_interval = 1});
  run_backward(scaler, weight, 1.0);
  scaler.unscale_(optimizer);
  EXPECT_ERROR(scaler.unscale_(optimizer), UsageError, "unscale_ twice");
  EXPECT_TRUE(scaler.step(optimizer).taken());
  EXPECT_ERROR(scaler.step(optimizer), UsageError, "step twice");
  scaler.update();
  EXPECT_TRUE(all_equal(weight, 1.0F - 0.1F));
  EXPECT_EQ(scaler.get_scale(), 2 * 65536.0);
}

TEST(GradScaler, RefusesToUnscaleGradientsInFloat16) {
  const std::string text =
      "GradScaler: gradients in float16 cannot be unscaled: they would vanish again; hint: keep "
      "the parameters in float32";
  const auto weight = torch::ones({2}, torch::dtype(torch::kFloat16).requires_grad(true));
  SGD fused({weight}, {.lr = 0.1});
  torch::optim::SGD other({weight}, torch::optim::SGDOptions(0.1));
  GradScaler scaler({.init_scale = 4.0});
  run_backward(scaler, weight, 1.0);
  EXPECT_ERROR(scaler.unscale_(fused), UsageError, text);
  EXPECT_ERROR(scaler.unscale_(other), UsageError, text);
  EXPECT_ERROR(scaler.step(other), UsageError, text);
  EXPECT_TRUE(all_equal(weight, 1.0));
  EXPECT_TRUE(all_equal(weight.grad(), 4.0));
}

// --- options ----------------------------------------------------------------------------

TEST(GradScaler, RefusesOptionsOutsideTheirRange) {
  for (const double scale : {0.0, -1.0, kInf, kNan, 1e300, 1e-60, 1e-40}) {
    EXPECT_ERROR(GradScaler({.init_scale = scale}), UsageError,
                 "GradScaler: expected a finite scale > 0, got 'scale ");
  }
  for (const double factor : {1.0, 0.5, -2.0, kNan}) {
    EXPECT_ERROR(GradScaler({.growth_factor = factor}), UsageError,
                 "GradScaler: expected growth_factor > 1, got 'scale 65536, growth ");
  }
  for (const double factor : {1.0, 0.0, -0.5, 2.0, kNan}) {
    EXPECT_ERROR(GradScaler({.backoff_factor = factor}), UsageError,
                 "GradScaler: expected backoff_factor between 0 and 1, got 'scale 65536");
  }
  for (const std::int64_t interval : {0, -1}) {
    EXPECT_ERROR(GradScaler({.growth_interval = interval}), UsageError,
                 "GradScaler: expected growth_interval > 0, got 'scale 65536, growth 2 every " +
                     std::to_string(interval) + ", backoff 0.5");
  }
}

// --- a scale of one's own ---------------------------------------------------------------

TEST(GradScaler, UpdateTakesAScaleAndKeepsTheTrackerAsPython) {
  const auto weight = weight_of(1.0);
  SGD optimizer({weight}, {.lr = 0.1});
  GradScaler scaler;
  run_step(scaler, optimizer, weight, 1.0);
  run_backward(scaler, weight, kInf);
  EXPECT_FALSE(scaler.step(optimizer).taken());
  scaler.update(128.0);
  EXPECT_EQ(scaler.get_scale(), 128.0);
  EXPECT_EQ(scaler.skipped_steps(), 1);
  EXPECT_EQ(scaler.state_dict().at("_growth_tracker"), 1);
  run_backward(scaler, weight, 1.0);
  EXPECT_TRUE(all_equal(weight.grad(), 128.0));
  EXPECT_TRUE(scaler.step(optimizer).taken());  // a new iteration
}

TEST(GradScaler, UpdateTakesAScaleBeforeTheFirstLoss) {
  GradScaler scaler;
  scaler.update(2.0);
  EXPECT_EQ(scaler.get_scale(), 2.0);
  EXPECT_EQ(scaler.scale(torch::tensor(1.0F)).item<float>(), 2.0F);
}

TEST(GradScaler, UpdateRefusesAScaleThatIsNone) {
  GradScaler used;
  used.scale(torch::tensor(1.0F));
  GradScaler fresh;
  for (GradScaler* scaler : {&fresh, &used}) {
    for (const double scale : {0.0, -1.0, kInf, kNan, 1e300, 1e-60}) {
      EXPECT_ERROR(scaler->update(scale), UsageError,
                   "GradScaler::update: expected a finite scale > 0, got ");
    }
    EXPECT_EQ(scaler->get_scale(), 65536.0);
  }
}

// --- state ------------------------------------------------------------------------------

const GradScalerOptions kOddOptions = {
    .init_scale = 1000.0, .growth_factor = 3.0, .backoff_factor = 0.3, .growth_interval = 4};

// A scaler with a history, and what it does next.
struct Going {
  explicit Going(GradScalerOptions options = {}) : scaler(options) {}

  void go(const std::vector<double>& gradients) {
    for (const double gradient : gradients) run_step(scaler, optimizer, weight, gradient);
  }

  torch::Tensor weight = weight_of(1.0);
  SGD optimizer{{weight}, {.lr = 0.1}};
  GradScaler scaler;
};

TEST(GradScaler, GoesOnFromItsState) {
  for (const bool used : {false, true}) {
    Going original(kOddOptions);
    original.go({1.0, kInf, 1.0, 1.0, 1.0});
    const auto text = original.scaler.state_dict().dump();
    EXPECT_EQ(Json::parse(text), (Json{{"scale", 300.0},
                                       {"growth_factor", 3.0},
                                       {"backoff_factor", 0.3},
                                       {"growth_interval", 4},
                                       {"_growth_tracker", 3}}));
    Going resumed;  // with other options
    if (used) resumed.go({kInf, 1.0});
    resumed.scaler.load_state_dict(Json::parse(text), "state");
    for (int step = 0; step < 6; ++step) {
      EXPECT_EQ(resumed.scaler.state_dict(), original.scaler.state_dict()) << step;
      original.go({0.5});
      resumed.go({0.5});
    }
    EXPECT_EQ(resumed.scaler.get_scale(), 2700.0);            // it grew, by the factor of the state
    EXPECT_EQ(resumed.scaler.skipped_steps(), used ? 1 : 0);  // of this process
  }
}

TEST(GradScaler, ChecksItsStateFirstAndTakesItLater) {
  for (const bool used : {false, true}) {
    Going going;
    if (used) going.go({kInf, 1.0});
    const auto before = going.scaler.state_dict();
    const auto state = GradScaler(kOddOptions).state_dict();
    const auto apply = going.scaler.plan_load(state, "state");
    EXPECT_EQ(going.scaler.state_dict(), before);
    apply();
    EXPECT_EQ(going.scaler.state_dict(), state);
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
    bad.emplace_back(good, "state: expected " + text).first[name] = value;
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
  for (const double scale : {0.0, -1.0, 1e300, 1e-60}) {
    with("scale", scale, "a gradient scaler with a finite scale > 0");
  }
  with("growth_factor", 1.0, "a gradient scaler with growth_factor > 1");
  with("backoff_factor", 1.0, "a gradient scaler with backoff_factor between 0 and 1");
  with("growth_interval", 0, "a gradient scaler with growth_interval > 0");
  with("growth_interval", 2.5, R"(a whole number from 0 to 2^62 as "growth_interval", got 2.5)");
  with("_growth_tracker", -1, R"(a whole number from 0 to 2^62 as "_growth_tracker", got -1)");
  with("_growth_tracker", std::int64_t{1} << 31,
       "a gradient scaler with _growth_tracker from 0 to 2147483647");
  return bad;
}

TEST(GradScaler, RefusesADamagedStateAndStaysAsItWas) {
  Going fresh(kOddOptions);
  Going used(kOddOptions);
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
  Going saved(kOddOptions);
  saved.go({1.0, 1.0, kInf, 1.0});
  save_model(*model, path, metadata_of(saved.scaler));
  Going loaded;
  load_scaler(loaded.scaler, path);
  EXPECT_EQ(loaded.scaler.state_dict(), saved.scaler.state_dict());
  torch::nn::Linear other(2, 2);
  load_model(*other, path);  // as without a scaler
  EXPECT_TRUE(torch::equal(other->weight, model->weight));
}

TEST(GradScaler, StaysAsItIsWithoutAStateInTheFile) {
  const TemporaryFolder folder;
  const auto path = folder.file("model.safetensors");
  GradScaler disabled({.enabled = false});
  save_model(*torch::nn::Linear(2, 2), path, metadata_of(disabled));
  EXPECT_FALSE(load_safetensors(path).metadata.contains("scaler"));
  Going going(kOddOptions);
  going.go({1.0, kInf});
  const auto before = going.scaler.state_dict();
  load_scaler(going.scaler, path);
  EXPECT_EQ(going.scaler.state_dict(), before);
}

TEST(GradScaler, RefusesAFileThatIsDamaged) {
  const TemporaryFolder folder;
  const auto path = folder.file("model.safetensors");
  GradScaler scaler;
  EXPECT_ERROR(load_scaler(scaler, path), DataError, path);
  for (const std::string text : {"", "{\"scale\": 1"}) {
    save_model(*torch::nn::Linear(2, 2), path, {{"scaler", text}});
    EXPECT_ERROR(load_scaler(scaler, path), DataError,
                 path + ": expected valid JSON, got an error at byte ");
  }
  for (const std::string text : {"[]", "{}", "{\"scale\": \"big\"}"}) {
    save_model(*torch::nn::Linear(2, 2), path, {{"scaler", text}});
    EXPECT_ERROR(load_scaler(scaler, path), DataError, path + ": expected a");
  }
  folder.write("model.safetensors", "short");
  EXPECT_ERROR(load_scaler(scaler, path), DataError, path);
  EXPECT_EQ(scaler.state_dict(), GradScaler().state_dict());
}

// --- the point of it --------------------------------------------------------------------

// A step of a layer that computes in float16, with gradients of 1e-8 at its output.
torch::Tensor weight_after_step(GradScaler& scaler) {
  const auto weight = torch::ones({4, 1}, torch::requires_grad());
  AdamW optimizer({weight}, {.lr = 0.125, .eps = 1e-12, .weight_decay = 0.0});
  torch::Tensor output;
  {
    const Autocast autocast(torch::kCPU, torch::kFloat16);
    output = torch::mm(torch::ones({3, 4}), weight);
  }
  EXPECT_EQ(output.scalar_type(), torch::kFloat16);
  scaler.scale((output.to(torch::kFloat32) * 1e-8).sum()).backward();
  EXPECT_TRUE(scaler.step(optimizer).taken());
  scaler.update();
  return weight.detach();
}

TEST(GradScaler, KeepsGradientsAliveThatFloat16Loses) {
  GradScaler none({.enabled = false});
  EXPECT_TRUE(all_equal(weight_after_step(none), 1.0));  // the gradient was 0
  GradScaler scaler;
  const auto moved = weight_after_step(scaler);
  EXPECT_TRUE(torch::allclose(moved, torch::full({4, 1}, 1.0 - 0.125), 1e-3));
}

}  // namespace
}  // namespace ladder
