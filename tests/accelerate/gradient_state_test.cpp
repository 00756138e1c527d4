// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/gradient_state.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "tests/support/expect_error.h"

namespace ladder {
namespace {

using Sizes = std::vector<std::int64_t>;

struct Epoch {
  std::vector<bool> steps;      // whether a step follows each batch
  std::vector<double> weights;  // of each batch's loss
};

// All batches of an epoch from `first` on, as in a prepared loader.
Epoch epoch_of(GradientState& state, const Sizes& sizes, std::int64_t first = 0) {
  EpochProgress pass{.global_sizes = sizes};
  Epoch epoch;
  state.enter(pass);
  for (pass.index = first; pass.index < pass.batches(); ++pass.index) {
    state.begin_batch();
    epoch.steps.push_back(state.sync_gradients());
    epoch.weights.push_back(state.loss_weight());
  }
  state.leave(pass);
  return epoch;
}

void expect_epoch(const Epoch& epoch, const std::vector<bool>& steps,
                  const std::vector<double>& weights) {
  EXPECT_EQ(epoch.steps, steps);
  EXPECT_EQ(epoch.weights, weights);
}

TEST(GradientState, WithOneStepFollowsEveryBatch) {
  GradientState state(1, true);
  EXPECT_TRUE(state.sync_gradients()) << "before the first batch, for a loop without accumulate";
  expect_epoch(epoch_of(state, {4, 4, 2}), {true, true, true}, {1.0, 1.0, 1.0});
}

TEST(GradientState, EndsTheLastWindowWithTheEpoch) {
  GradientState state(2, true);
  for (int epoch = 0; epoch < 2; ++epoch) {
    expect_epoch(epoch_of(state, {4, 4, 4, 4, 2}), {false, true, false, true, true},
                 {0.5, 0.5, 0.5, 0.5, 1.0});
  }
}

// Python's weights are a third each, in the last window too.
TEST(GradientState, WeighsEachBatchByItsSamples) {
  GradientState state(3, true);
  expect_epoch(epoch_of(state, {4, 4, 4, 6, 2}), {false, false, true, false, true},
               {4.0 / 12, 4.0 / 12, 4.0 / 12, 0.75, 0.25});
  expect_epoch(epoch_of(state, {4, 0}), {false, true}, {1.0, 0.0});
}

TEST(GradientState, LetsWindowsCrossEpochsWithoutSyncWithDataloader) {
  GradientState state(2, /*sync_with_dataloader=*/false);
  expect_epoch(epoch_of(state, {4, 4, 2}), {false, true, false}, {0.5, 0.5, 0.5});
  expect_epoch(epoch_of(state, {4, 4, 2}), {true, false, true}, {0.5, 0.5, 0.5});
}

TEST(GradientState, CountsByItselfWithoutALoader) {
  GradientState state(3, true);
  for (const bool step : {false, false, true, false, false, true}) {
    state.begin_batch();
    EXPECT_EQ(state.sync_gradients(), step);
    EXPECT_DOUBLE_EQ(state.loss_weight(), 1.0 / 3);
  }
}

// Windows are those of the whole epoch, wherever the pass begins.
TEST(GradientState, GoesOnInTheMiddleOfAnEpoch) {
  const Sizes sizes = {4, 4, 4, 4, 4, 4, 2};
  GradientState whole(3, true);
  const auto expected = epoch_of(whole, sizes);
  for (const std::int64_t first : {3, 6, 7}) {
    GradientState resumed(3, true);
    const auto rest = epoch_of(resumed, sizes, first);
    EXPECT_EQ(rest.steps, std::vector(expected.steps.begin() + first, expected.steps.end()));
    EXPECT_EQ(rest.weights, std::vector(expected.weights.begin() + first, expected.weights.end()));
  }
}

// Behind skip_first_batches, say: all windows weigh 1, the first too. Likewise after a `break`.
TEST(GradientState, BeginsAWindowWithAPassFromAnyBatch) {
  GradientState state(4, true);
  expect_epoch(epoch_of(state, {4, 4, 4, 4, 4, 4, 4, 2}, 2),
               {false, false, false, true, false, true},
               {0.25, 0.25, 0.25, 0.25, 4.0 / 6.0, 2.0 / 6.0});
  const EpochProgress pass{.global_sizes = {4, 4, 4, 4, 4}, .index = 0};
  state.enter(pass);
  state.begin_batch();
  state.leave(pass);
  EXPECT_FALSE(state.sync_gradients());
  EXPECT_EQ(epoch_of(state, {4, 4, 4, 4, 4}).steps, (std::vector{false, false, false, true, true}));
}

TEST(GradientState, ChangesTheNumberOfStepsBetweenWindowsOnly) {
  GradientState state(2, true);
  state.begin_batch();
  EXPECT_ERROR(state.set_num_steps(3), UsageError, "in the middle of an accumulation window");
  EXPECT_EQ(state.num_steps(), 2);
  state.begin_batch();
  state.set_num_steps(3);
  EXPECT_EQ(epoch_of(state, {1, 1, 1, 1}).steps, (std::vector{false, false, true, true}));
  state.set_num_steps(1);
  EXPECT_EQ(epoch_of(state, {1, 1}).weights, (std::vector{1.0, 1.0}));
  EXPECT_ERROR(state.set_num_steps(0), UsageError, "expected 1 to 1000000, got 0");
}

TEST(GradientState, BeginsAWindowAfterADroppedOne) {
  GradientState state(3, true);
  EpochProgress pass{.global_sizes = {4, 4, 4, 4, 4}};
  state.enter(pass);
  state.begin_batch();
  EXPECT_FALSE(state.sync_gradients());
  state.drop_window();
  EXPECT_TRUE(state.sync_gradients()) << "no window is open";
  std::vector<bool> steps;
  for (pass.index = 1; pass.index < pass.batches(); ++pass.index) {
    state.begin_batch();
    steps.push_back(state.sync_gradients());
  }
  EXPECT_EQ(steps, (std::vector{false, false, true, true}));
}

TEST(GradientState, HasTheProgressOfTheInnermostPass) {
  GradientState state(1, true);
  const EpochProgress outer;
  const EpochProgress inner;
  EXPECT_EQ(state.progress(), nullptr);
  state.enter(outer);
  state.enter(inner);
  EXPECT_EQ(state.progress(), &inner);
  state.leave(inner);
  EXPECT_EQ(state.progress(), &outer);
}

TEST(EpochProgress, LeavesRepetitionsOut) {
  for (const auto& [before, size] : {std::pair(4, 4), {8, 2}, {12, 0}}) {
    const EpochProgress pass{
        .global_sizes = {4, 4, 4, 4}, .samples = 10, .index = 1, .samples_before = before};
    EXPECT_EQ(pass.real_size(), size);
  }
}

}  // namespace
}  // namespace ladder
