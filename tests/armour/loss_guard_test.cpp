// SPDX-License-Identifier: Apache-2.0
#include "ladder/armour/loss_guard.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/exact/exact_data_parallel.h"
#include "tests/support/expect_error.h"
#include "tests/support/small_modules.h"
#include "tests/support/small_net.h"

namespace ladder {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr std::int64_t kLate = LossMeter::kGpuInterval;

Batch slice_of_batch(std::int64_t size, std::int64_t global_size, std::int64_t world_size = 1) {
  return {.targets = torch::zeros({size}, torch::kInt64),
          .global_size = global_size,
          .world_size = world_size};
}

std::optional<NonFiniteStep> add(LossMeter& meter, double loss, std::int64_t step,
                                 std::int64_t size = 1) {
  return meter.add(torch::tensor(loss, torch::kFloat32), slice_of_batch(size, size), step);
}

std::string text(const std::optional<NonFiniteStep>& bad) {
  if (!bad) return "none";
  return fmt::format("epoch {}, step {}: {}", bad->epoch, bad->step, bad->loss);
}

TEST(LossMeter, AveragesOverSamplesAndNotOverSteps) {
  for (const std::int64_t interval : {std::int64_t{1}, kLate}) {
    LossMeter meter(torch::kCPU, interval);
    meter.begin_epoch(1);
    add(meter, 1.0, 1, /*size=*/2);
    add(meter, 4.0, 2, /*size=*/4);
    meter.flush();
    EXPECT_EQ(meter.mean(), 3.0);  // (2 · 1 + 4 · 4) / 6
    EXPECT_EQ(meter.last(), 4.0);
  }
}

TEST(LossMeter, AveragesOverTheSamplesOfThisRank) {
  LossMeter meter(torch::kCPU);
  meter.begin_epoch(1);
  // One sample of a global batch of four on two ranks: its loss of 3 comes as 3 · 2 ÷ 4.
  meter.add(torch::tensor(1.5F), slice_of_batch(1, 4, 2), 1);
  EXPECT_EQ(meter.last(), 3.0);
  // An empty slice.
  meter.add(torch::tensor(0.0F), slice_of_batch(0, 1, 2), 2);
  EXPECT_EQ(meter.mean(), 3.0);
  EXPECT_TRUE(std::isnan(meter.last()));
}

// With exact sums, a rank's loss is its share of the mean over the batch of all ranks.
TEST(LossMeter, AveragesSharesOfExactSums) {
  for (const std::int64_t interval : {std::int64_t{1}, kLate}) {
    LossMeter meter(torch::kCPU, interval);
    meter.begin_epoch(1);
    auto batch = slice_of_batch(6, 16, 3);
    batch.micro_batch = 2;
    meter.add(torch::tensor(1.125, torch::kDouble), batch, 1);  // losses of 3: 6 · 3 ÷ 16
    meter.flush();
    EXPECT_EQ(meter.mean(), 3.0);
    EXPECT_EQ(meter.last(), 3.0);
  }
}

TEST(LossMeter, IsUnknownBeforeTheFirstLookOfAnEpoch) {
  for (const std::int64_t interval : {std::int64_t{1}, kLate}) {
    LossMeter meter(torch::kCPU, interval);
    EXPECT_TRUE(std::isnan(meter.last()));
    meter.flush();  // nothing to look at
    for (const double loss : {100.0, 2.0}) {
      meter.begin_epoch(1);
      EXPECT_TRUE(std::isnan(meter.mean()));
      add(meter, loss, 1);
      EXPECT_EQ(std::isnan(meter.mean()), interval == kLate);
      meter.flush();
      EXPECT_EQ(meter.last(), loss);
      EXPECT_EQ(meter.mean(), loss);
    }
  }
}

TEST(LossMeter, SumsInDoublePrecision) {
  LossMeter meter(torch::kCPU);
  meter.begin_epoch(1);
  add(meter, 16777216.0, 1);  // 2^24, above which float has no odd numbers
  add(meter, 1.0, 2);
  add(meter, 1.0, 3);
  EXPECT_EQ(meter.mean(), 16777218.0 / 3.0);
}

TEST(LossMeter, OnTheCpuStopsAtTheStepThatIsNotFinite) {
  LossMeter meter(torch::kCPU);
  meter.begin_epoch(2);
  add(meter, 1.0, 6);
  EXPECT_EQ(text(add(meter, kNan, 7)), "epoch 2, step 7: nan");
  EXPECT_EQ(text(add(meter, kInf, 8)), "epoch 2, step 8: inf");
  EXPECT_EQ(text(add(meter, -kInf, 9)), "epoch 2, step 9: -inf");
  EXPECT_EQ(meter.mean(), 1.0) << "the bad steps do not count";
}

TEST(LossMeter, LookingLateNamesTheFirstBadStepWhenFlushedOrAtTheFiftiethStep) {
  for (const std::int64_t last : {std::int64_t{20}, kLate}) {
    LossMeter meter(torch::kCPU, kLate);
    meter.begin_epoch(3);
    for (std::int64_t step = 1; step < last; ++step) {
      add(meter, step == 13 ? kInf : (step == 17 ? kNan : 1.0), step);
    }
    EXPECT_EQ(text(last == kLate ? add(meter, 1.0, last) : meter.flush()), "epoch 3, step 13: inf");
  }
}

TEST(LossMeter, LookingLateWaitsForTheStepOfTheOptimizer) {
  LossMeter meter(torch::kCPU, kLate);
  meter.begin_epoch(1);
  const auto window = [&](double loss, bool updated) {
    return meter.add(torch::tensor(loss), slice_of_batch(2, 2, 1), 1, updated);
  };
  EXPECT_FALSE(window(kNan, false));
  for (std::int64_t batch = 1; batch <= kLate; ++batch) EXPECT_FALSE(window(1.0, false)) << batch;
  EXPECT_EQ(text(window(1.0, true)), "epoch 1, step 1: nan");
}

TEST(LossMeter, LookingLateLooksEveryFiftySteps) {
  LossMeter meter(torch::kCPU, kLate);
  meter.begin_epoch(1);
  for (std::int64_t step = 1; step <= 2 * kLate + 1; ++step) {
    add(meter, static_cast<double>(step), step);
    const std::int64_t looked_at = step / kLate * kLate;
    if (looked_at == 0) continue;
    EXPECT_EQ(meter.last(), static_cast<double>(looked_at));
  }
  EXPECT_EQ(meter.mean(), 50.5) << "of 1 to 100";
  meter.flush();
  EXPECT_EQ(meter.mean(), 51.0) << "of 1 to 101";
}

TEST(LossMeter, KeepsNoGraphAlive) {
  LossMeter meter(torch::kCPU, kLate);
  const auto weight = torch::ones({}, torch::requires_grad());
  const auto loss = weight * 2.0;
  meter.begin_epoch(1);
  meter.add(loss, slice_of_batch(1, 1), 1);
  meter.flush();
  loss.backward();  // would throw if the loss had been changed in place
  EXPECT_EQ(weight.grad().item<float>(), 2.0F);
}

TEST(LossMeter, OnAGpuLooksEveryFiftySteps) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no GPU";
  LossMeter meter(torch::kCUDA);
  meter.begin_epoch(1);
  const auto loss = torch::tensor(kNan, torch::dtype(torch::kFloat32).device(torch::kCUDA));
  meter.add(loss, slice_of_batch(1, 1), 4);
  EXPECT_EQ(text(meter.flush()), "epoch 1, step 4: nan");
}

// A model and its guard, in the first epoch.
struct Guarded {
  explicit Guarded(RunSetup setup = {}) : guard(model, std::move(setup)) { guard.begin_epoch(1); }

  OneWeight model;
  LossGuard guard;
};

const auto kBadLoss = torch::tensor(std::numeric_limits<float>::quiet_NaN());

TEST(LossGuard, ThrowsInTheStepOfALossThatIsNotFinite) {
  Guarded run;
  run.guard.add(batch_of(2), torch::tensor(1.0F), 1);
  EXPECT_ERROR(run.guard.add(batch_of(2), kBadLoss, 2), NumericError,
               "epoch 1, step 2: expected a finite loss, got nan (first bad tensor: the loss; "
               "samples 100 101; last checkpoint: none)");
  const ExactDataParallel model(small_net(), ProcessGroup::single());
  LossGuard of_exact_sums(model, {});
  of_exact_sums.begin_epoch(1);
  EXPECT_ERROR(of_exact_sums.add(batch_of(2), kBadLoss, 2), NumericError,
               "sums in micro-batches turn large gradients into NaN: sums in float do not");
}

TEST(LossGuard, ThrowsAtTheEndOfTheAccumulationWindowOrOfTheEpoch) {
  Guarded run;
  run.model.weight.mutable_grad() = torch::tensor({1.0, kNan, 1.0});
  run.guard.add(batch_of(2), torch::tensor(1.0F), 1);
  run.guard.add(batch_of(3), kBadLoss, 2, /*updated=*/false);
  EXPECT_ERROR(run.guard.add(batch_of(1), torch::tensor(1.0F), 2), NumericError,
               "epoch 1, step 2: expected a finite loss, got nan (first bad tensor: gradient of "
               "weight; samples 100 101 102; last checkpoint: none)");
  Guarded ends_inside;
  ends_inside.guard.add(batch_of(3), kBadLoss, 1, /*updated=*/false);
  EXPECT_ERROR(ends_inside.guard.flush(), NumericError, "epoch 1, step 1: expected a finite loss");
}

TEST(LossGuard, SparseGradientsDoNotHideTheLoss) {
  Guarded run;
  run.model.weight.mutable_grad() = torch::tensor({1.0, kNan, 1.0}).to_sparse();
  EXPECT_ERROR(run.guard.add(batch_of(1), kBadLoss, 1), NumericError,
               "expected a finite loss, got nan (first bad tensor: unknown; samples 100;");
}

TEST(LossGuard, NamesTheInputAndTheSampleThatAreNotFiniteAndTheLastCheckpoint) {
  auto batch = batch_of(3);
  auto images = torch::zeros({3, 1, 2, 2});
  images[1][0][1][0] = kNan;
  batch.inputs = {{"tokens", torch::zeros({3, 5}, torch::kInt64)}, {"images", images}};
  Guarded run({.checkpoints = {.last = [] { return std::string("out/checkpoint_1"); }}});
  EXPECT_ERROR(run.guard.add(batch, kBadLoss, 1), NumericError,
               "got nan (first bad tensor: images of sample 101; samples 100 101 102; last "
               "checkpoint: out/checkpoint_1)");
  batch.inputs = torch::tensor({1.0, kNan, 1.0});  // one number per sample
  EXPECT_ERROR(Guarded().guard.add(batch, kBadLoss, 1), NumericError,
               "(first bad tensor: x of sample 101; samples 100 101 102;");
}

}  // namespace
}  // namespace ladder
