// SPDX-License-Identifier: Apache-2.0
// AcceleratedOptimizer and AcceleratedScheduler: alone, with a scaler on the CPU, and in ranks.
#include "ladder/accelerate/accelerated_optimizer.h"

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "ladder/accelerate/accelerator.h"
#include "ladder/accelerate/gradient_state.h"
#include "ladder/amp/grad_scaler.h"
#include "ladder/core/error.h"
#include "ladder/optim/lr_scheduler.h"
#include "ladder/optim/schedules.h"
#include "ladder/optim/sgd.h"
#include "tests/support/accelerators.h"
#include "tests/support/expect_error.h"
#include "tests/support/operator_calls.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"

namespace ladder {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// One weight, its optimizer with the learning rate 1, and a scheduler that counts.
struct Parts {
  explicit Parts(GradScalerOptions scaler_options = {.enabled = false}, int num_steps = 1,
                 AcceleratedScheduler::Options scheduler_options = {})
      : scaler(std::make_shared<GradScaler>(scaler_options)),
        gradients(std::make_shared<GradientState>(num_steps, true)) {
    optimizers->push_back(std::make_shared<AcceleratedOptimizer>(sgd, scaler, gradients, false));
    scheduler =
        std::make_shared<AcceleratedScheduler>(counter, optimizers, gradients, scheduler_options);
  }

  AcceleratedOptimizer& optimizer() { return *optimizers->front(); }
  double value() const { return weight.item<double>(); }
  std::int64_t steps_of_schedule() const { return counter->last_epoch(); }

  // As a training loop: a loss whose gradient is `gradient`.
  void run(double gradient) {
    ++gradients->backward_calls;
    scaler->scale((weight * gradient).sum()).backward();
    optimizer().step();
    scheduler->step();
    optimizer().zero_grad();
  }

  torch::Tensor weight = torch::zeros({1}, torch::requires_grad());
  std::shared_ptr<SGD> sgd = std::make_shared<SGD>(std::vector{weight}, SgdOptions{.lr = 1.0});
  std::shared_ptr<LrScheduler> counter = constant_schedule(*sgd);
  std::shared_ptr<GradScaler> scaler;
  std::shared_ptr<GradientState> gradients;
  std::shared_ptr<PreparedOptimizers> optimizers = std::make_shared<PreparedOptimizers>();
  std::shared_ptr<AcceleratedScheduler> scheduler;
};

TEST(AcceleratedOptimizer, StepsAtTheEndOfAWindowOnly) {
  run_alone([] {
    Parts parts({.enabled = false}, /*num_steps=*/3);
    for (const double expected : {0.0, 0.0, -6.0, -6.0, -6.0, -12.0}) {
      parts.gradients->begin_batch();
      parts.run(2.0);  // adds up: zero_grad waits for the end of the window too
      EXPECT_EQ(parts.value(), expected);
    }
    EXPECT_EQ(parts.steps_of_schedule(), 2);
    EXPECT_FALSE(parts.optimizer().step_was_skipped());
  });
}

TEST(AcceleratedOptimizer, WatchesTheStepsOfLibTorchsOptimizers) {
  run_alone([] {
    auto weight = torch::ones({1}, torch::dtype(torch::kBFloat16).requires_grad(true));
    const auto sgd = std::make_shared<torch::optim::SGD>(std::vector{weight}, 1e-3);
    AcceleratedOptimizer optimizer(
        sgd, std::make_shared<GradScaler>(GradScalerOptions{.enabled = false}),
        std::make_shared<GradientState>(1, true), false);
    weight.mutable_grad() = torch::ones_like(weight);
    testing::internal::CaptureStderr();
    optimizer.step();
    const auto text = testing::internal::GetCapturedStderr();
    EXPECT_NE(text.find("100 % of the bfloat16 weights"), std::string::npos) << text;
  });
}

TEST(AcceleratedOptimizer, ReportsASkippedStepAndItsScheduleAloneWaits) {
  run_alone([] {
    Parts parts({.init_scale = 8.0});
    const auto other = std::make_shared<SGD>(std::vector{torch::zeros({1})}, SgdOptions{});
    const std::shared_ptr<LrScheduler> counter = constant_schedule(*other);
    AcceleratedScheduler of_other(counter, parts.optimizers, parts.gradients, {});
    EXPECT_FALSE(parts.optimizer().step_was_skipped());
    parts.run(1.0);
    EXPECT_FALSE(parts.optimizer().step_was_skipped());
    EXPECT_EQ(parts.value(), -1.0) << "the gradient was divided by the scale";
    parts.run(kInf);
    of_other.step();
    EXPECT_TRUE(parts.optimizer().step_was_skipped());
    EXPECT_EQ(parts.value(), -1.0);
    EXPECT_EQ(parts.steps_of_schedule(), 1);
    EXPECT_EQ(counter->last_epoch(), 1);
    EXPECT_EQ(parts.scaler->get_scale(), 4.0);
    parts.run(1.0);
    EXPECT_FALSE(parts.optimizer().step_was_skipped());
    EXPECT_EQ(parts.steps_of_schedule(), 2);
  });
}

// A GPU would be waited for otherwise: only it knows whether the step was skipped.
TEST(AcceleratedScheduler, ReadsWhetherAStepWasSkippedOneStepLater) {
  run_alone([] {
    Parts parts({.init_scale = 8.0});
    const auto halved =
        std::make_shared<StepLR>(*parts.sgd, StepLrOptions{.step_size = 1, .gamma = 0.5});
    AcceleratedScheduler scheduler(halved, parts.optimizers, parts.gradients, {});
    const auto rate = [&] { return parts.sgd->param_groups()[0].options().get_lr(); };
    const auto backward = [&](double gradient) {
      parts.optimizer().zero_grad();
      parts.scaler->scale((parts.weight * gradient).sum()).backward();
    };
    backward(1.0);
    {
      const OperatorCalls reads(kHostRead);
      parts.optimizer().step();
      scheduler.step();
      EXPECT_EQ(reads.count(), 0);
    }
    EXPECT_EQ(rate(), 1.0);
    backward(kInf);
    parts.optimizer().step();
    EXPECT_EQ(rate(), 0.5) << "the rate of the second step";
    scheduler.step();
    EXPECT_EQ(scheduler.last_lr(), std::vector{0.5}) << "it was skipped";
    backward(1.0);
    parts.optimizer().step();
    scheduler.step();
    EXPECT_EQ(parts.value(), -1.5);
    EXPECT_EQ(scheduler.last_lr(), std::vector{0.25});
  });
}

TEST(AcceleratedOptimizer, UnscalesOncePerStep) {
  run_alone([] {
    Parts parts({.init_scale = 8.0});
    for (int step = 1; step <= 2; ++step) {
      parts.scaler->scale((parts.weight * 3.0).sum()).backward();
      EXPECT_EQ(parts.weight.grad().item<double>(), 24.0);
      parts.optimizer().unscale_gradients();
      parts.optimizer().unscale_gradients();
      EXPECT_EQ(parts.weight.grad().item<double>(), 3.0);
      parts.optimizer().step();
      EXPECT_EQ(parts.value(), -3.0 * step);
      parts.optimizer().zero_grad();
    }
  });
}

// As Accelerator::clip_grad_norm_ in the loop of a GAN.
TEST(AcceleratedOptimizer, OfTwoEachUnscalesTheGradientsOfItsOwnBackward) {
  run_alone([] {
    Parts parts({.init_scale = 8.0});
    auto other = torch::zeros({1}, torch::requires_grad());
    AcceleratedOptimizer second(std::make_shared<SGD>(std::vector{other}, SgdOptions{.lr = 1.0}),
                                parts.scaler, parts.gradients, /*debug=*/false);
    const auto unscale_both = [&] {
      parts.optimizer().unscale_gradients();
      second.unscale_gradients();
    };
    parts.scaler->scale((parts.weight * 3.0).sum()).backward();
    unscale_both();  // the other has no gradient
    parts.optimizer().step();
    parts.optimizer().zero_grad();
    parts.scaler->scale((parts.weight * 3.0 + other * 2.0).sum()).backward();
    unscale_both();  // the other's is of a loss that is not its own
    parts.optimizer().step();
    second.zero_grad();
    parts.scaler->scale((other * 5.0).sum()).backward();
    unscale_both();
    EXPECT_EQ(other.grad().item<double>(), 5.0);
    second.step();
    EXPECT_EQ(other.item<double>(), -5.0);
  });
}

// Accelerate divides the second's gradients again: its scaler forgets both with the first step.
TEST(AcceleratedOptimizer, OfTwoEachStepsWithTheScaleOfTheirCommonBackward) {
  run_alone([] {
    for (const bool unscales : {false, true}) {
      SCOPED_TRACE(unscales);
      Parts parts({.init_scale = 8.0});
      auto other = torch::zeros({1}, torch::requires_grad());
      AcceleratedOptimizer second(std::make_shared<SGD>(std::vector{other}, SgdOptions{.lr = 1.0}),
                                  parts.scaler, parts.gradients, /*debug=*/false);
      parts.scaler->scale((parts.weight * kInf + other * 2.0).sum()).backward();
      const auto clip = [&] {
        if (unscales) parts.optimizer().unscale_gradients();
        if (unscales) second.unscale_gradients();
      };
      clip();
      parts.optimizer().step();
      clip();
      second.step();
      EXPECT_EQ(other.item<double>(), -2.0);
      EXPECT_EQ(parts.scaler->get_scale(), 4.0) << "one update";
      EXPECT_EQ(parts.scaler->skipped_steps(), 1);
    }
  });
}

TEST(AcceleratedOptimizer, UnscalesAnewAfterGradientsWereDropped) {
  run_alone([] {
    Parts parts({.init_scale = 8.0});
    for (const double gradient : {kInf, 3.0}) {  // a loop that leaves out bad batches
      parts.scaler->scale((parts.weight * gradient).sum()).backward();
      parts.optimizer().unscale_gradients();
      if (gradient == kInf) parts.optimizer().zero_grad();
    }
    parts.optimizer().step();
    EXPECT_EQ(parts.value(), -3.0);
  });
}

TEST(AcceleratedOptimizer, MissesTheBackwardOfTheAcceleratorInDebugMode) {
  run_accelerators(1, [](Accelerators& ranks) {
    for (const bool debug : {true, false}) {
      const auto accelerator = ranks.make({.debug = debug});
      const auto one = small_net();
      const auto two = small_net();
      auto [first, second] = accelerator->prepare(plain_sgd(*one), plain_sgd(*two));
      run_backward(*accelerator, *one, basicnet(), random_batch(2));
      run_backward(*accelerator, *two, basicnet(), random_batch(2));
      first->step();
      second->step();
      loss_of(*one, basicnet(), random_batch(2)).backward();
      if (debug) {
        EXPECT_ERROR(first->step(), UsageError, "replace loss.backward()");
      } else {
        first->step();
      }
    }
  });
}

TEST(AcceleratedScheduler, StepsAsOftenAsItsOptions) {
  run_alone([] {
    Parts often({.enabled = false}, 1, {.steps_per_call = 3});
    often.run(1.0);
    EXPECT_EQ(often.steps_of_schedule(), 3);
    Parts alone({.enabled = false}, 2, {.steps_per_call = 3, .step_with_optimizer = false});
    alone.gradients->begin_batch();
    alone.run(1.0);  // in the middle of a window, and once
    EXPECT_EQ(alone.steps_of_schedule(), 1);
  });
}

// Steps of the schedule in one call of step(), in two processes.
std::int64_t steps_in_a_call(Accelerators& ranks, LoaderMode mode, std::optional<int> steps,
                             bool with_optimizer = true) {
  const auto accelerator = ranks.make({.data_loader = {.mode = mode},
                                       .step_scheduler_with_optimizer = with_optimizer,
                                       .scheduler_steps_per_call = steps});
  const std::shared_ptr<torch::optim::Optimizer> sgd =
      std::make_shared<SGD>(std::vector{torch::zeros({1})}, SgdOptions{});
  const std::shared_ptr<LrScheduler> counter = constant_schedule(*sgd);
  auto [optimizer, scheduler] = accelerator->prepare(sgd, counter);
  scheduler->step();
  EXPECT_EQ(&scheduler->scheduler(), counter.get());
  return counter->last_epoch();
}

TEST(AcceleratedScheduler, HasPythonsFactorWhereTheBatchGrows) {
  run_accelerators(2, [](Accelerators& ranks) {
    EXPECT_EQ(steps_in_a_call(ranks, LoaderMode::kPerProcess, {}), 2);
    EXPECT_EQ(steps_in_a_call(ranks, LoaderMode::kSplitBatches, {}), 1);
    EXPECT_EQ(steps_in_a_call(ranks, LoaderMode::kGlobal, {}), 1);
    EXPECT_EQ(steps_in_a_call(ranks, LoaderMode::kPerProcess, 1), 1);
    EXPECT_EQ(steps_in_a_call(ranks, LoaderMode::kGlobal, 3), 3);
    EXPECT_EQ(steps_in_a_call(ranks, LoaderMode::kPerProcess, {}, false), 1);
    EXPECT_ERROR(steps_in_a_call(ranks, LoaderMode::kGlobal, 0), UsageError,
                 "scheduler_steps_per_call");
  });
}

// accelerate/accelerator.py, Accelerator.optimizer_step_was_skipped: "Whether or not the optimizer
// update was skipped (because of gradient overflow in mixed precision)", for any of the optimizers.
TEST(Accelerator, OptimizerStepWasSkippedIfAnyOptimizerSkippedItsLastStep) {
  run_accelerators(1, [](Accelerators& ranks) {
    const auto accelerator = ranks.make();
    accelerator->scaler() = GradScaler({.init_scale = 8.0});  // fp16 enables it, on a GPU alone
    auto one = torch::zeros({1}, torch::requires_grad());
    auto two = torch::zeros({1}, torch::requires_grad());
    auto [first, second] =
        accelerator->prepare(std::make_unique<SGD>(std::vector{one}, SgdOptions{}),
                             std::make_unique<SGD>(std::vector{two}, SgdOptions{}));
    const auto skipped_with = [&, &first = first, &second = second](double gradient_of_one,
                                                                    double gradient_of_two) {
      accelerator->backward((one * gradient_of_one).sum() + (two * gradient_of_two).sum());
      first->step();
      second->step();
      first->zero_grad();
      second->zero_grad();
      return accelerator->optimizer_step_was_skipped();
    };
    EXPECT_FALSE(accelerator->optimizer_step_was_skipped());
    EXPECT_FALSE(skipped_with(1.0, 1.0));
    EXPECT_TRUE(skipped_with(kInf, 1.0));
    EXPECT_TRUE(skipped_with(1.0, kInf));
    EXPECT_FALSE(skipped_with(1.0, 1.0));
  });
}

}  // namespace
}  // namespace ladder
