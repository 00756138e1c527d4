// SPDX-License-Identifier: Apache-2.0
#include "ladder/monitor/loss_guard.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <limits>
#include <string>

#include "ladder/core/error.h"
#include "ladder/exact/exact_data_parallel.h"
#include "tests/support/expect_error.h"
#include "tests/support/small_modules.h"
#include "tests/support/small_net.h"

namespace ladder {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(LossGuard, ThrowsInTheStepOfALossThatIsNotFinite) {
  const OneWeight model;
  LossGuard guard(model, {});
  guard.begin_epoch(1);
  guard.add(batch_of(2), torch::tensor(1.0F), 1);
  EXPECT_ERROR(guard.add(batch_of(2), torch::tensor(kNan), 2), NumericError,
               "epoch 1, step 2: expected a finite loss, got nan (first bad tensor: the loss; "
               "samples 100 101; last checkpoint: none); hint: use a smaller learning rate");
}

TEST(LossGuard, NamesTheLimitOfExactSums) {
  const ExactDataParallel model(small_net(), ProcessGroup::single());
  LossGuard guard(model, {});
  guard.begin_epoch(1);
  EXPECT_ERROR(guard.add(batch_of(2), torch::tensor(kNan), 2), NumericError,
               "with a fingerprint of every step; exact sums turn gradients above 64 into NaN: "
               "float sums do not");
}

TEST(LossGuard, ThrowsAtTheEndOfTheAccumulationWindow) {
  OneWeight model;
  LossGuard guard(model, {});
  guard.begin_epoch(1);
  model.weight.mutable_grad() = torch::tensor({1.0F, kNan, 1.0F});
  guard.add(batch_of(2), torch::tensor(1.0F), 1);
  guard.add(batch_of(3), torch::tensor(kNan), 2, /*updated=*/false);
  EXPECT_ERROR(guard.add(batch_of(1), torch::tensor(1.0F), 2), NumericError,
               "epoch 1, step 2: expected a finite loss, got nan (first bad tensor: gradient of "
               "weight; samples 100 101 102; last checkpoint: none)");
}

TEST(LossGuard, ThrowsAtTheEndOfAnEpochThatEndsInsideAWindow) {
  const OneWeight model;
  LossGuard guard(model, {});
  guard.begin_epoch(1);
  guard.add(batch_of(3), torch::tensor(kNan), 1, /*updated=*/false);
  EXPECT_ERROR(guard.flush(), NumericError, "epoch 1, step 1: expected a finite loss");
}

TEST(LossGuard, NamesTheSampleOfAnInputOfOneNumberPerSample) {
  const OneWeight model;
  LossGuard guard(model, {});
  guard.begin_epoch(1);
  Batch batch = batch_of(3);
  batch.inputs = torch::tensor({1.0F, kNan, 1.0F});
  EXPECT_ERROR(guard.add(batch, torch::tensor(kNan), 1), NumericError,
               "(first bad tensor: x of sample 101; samples 100 101 102;");
}

TEST(LossGuard, SparseGradientsDoNotHideTheLoss) {
  OneWeight model;
  LossGuard guard(model, {});
  guard.begin_epoch(1);
  model.weight.mutable_grad() = torch::tensor({1.0F, kNan, 1.0F}).to_sparse();
  EXPECT_ERROR(guard.add(batch_of(1), torch::tensor(kNan), 1), NumericError,
               "expected a finite loss, got nan (first bad tensor: unknown; samples 100;");
}

TEST(LossGuard, NamesTheInputAndTheSampleThatAreNotFiniteAndTheLastCheckpoint) {
  const OneWeight model;
  LossGuard guard(model, {.checkpoints = {.last = [] { return std::string("out/checkpoint_1"); }}});
  guard.begin_epoch(1);
  auto batch = batch_of(3);
  auto images = torch::zeros({3, 1, 2, 2});
  images[1][0][1][0] = kNan;
  batch.inputs = {{"tokens", torch::zeros({3, 5}, torch::kInt64)}, {"images", images}};
  EXPECT_ERROR(guard.add(batch, torch::tensor(kNan), 1), NumericError,
               "got nan (first bad tensor: images of sample 101; samples 100 101 102; last "
               "checkpoint: out/checkpoint_1)");
}

}  // namespace
}  // namespace ladder
