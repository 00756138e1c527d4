// SPDX-License-Identifier: Apache-2.0
// TrainingMonitor on several ranks.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <csignal>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "ladder/armour/loss_guard.h"
#include "ladder/launch/signals.h"
#include "ladder/monitor/training_monitor.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/small_modules.h"

namespace ladder {
namespace {

Batch batch_of_two(const ProcessGroup& group) {
  return {.targets = torch::zeros({2}, torch::kInt64),
          .indices = torch::tensor({10 + group.rank(), 20 + group.rank()}),
          .global_size = 4,
          .world_size = 2};
}

// In its first epoch.
std::unique_ptr<TrainingMonitor> begun(const ProcessGroup& group, const OneWeight& model,
                                       CheckpointHooks checkpoints = {}) {
  auto monitor = std::make_unique<TrainingMonitor>(
      MonitorOptions{.quiet = true},
      RunSetup{.group = group, .checkpoints = std::move(checkpoints)}, model, 3);
  monitor->begin_epoch(1, 1);
  return monitor;
}

// As DistributedDataParallel leaves it: the same on all.
void average_gradient(const ProcessGroup& group, OneWeight& model, double own) {
  auto gradient = torch::full({3}, own, torch::kFloat32);
  group.all_reduce(gradient);
  model.weight.mutable_grad() = gradient / group.world_size();
}

// Whatever the network makes of it: no gradient shows the bad loss, or all losses after it are bad.
TEST(TrainingMonitorOfRanks, AllStopTogetherAndNameTheFirstBadLoss) {
  for (const bool spreads : {true, false}) {
    run_ranks(3, [=](const ProcessGroup& group) {
      OneWeight model;
      const auto monitor = begun(group, model);
      std::int64_t done = 0;
      const auto step = [&] {
        const bool is_first = done == 1 && group.rank() == 1;
        const bool is_bad = is_first || (spreads && done > 1);
        const double loss = is_bad ? std::numeric_limits<double>::quiet_NaN() : 1.0;
        average_gradient(group, model, spreads ? loss : 1.0);
        monitor->step(batch_of_two(group), torch::tensor(static_cast<float>(loss)));
        ++done;
      };
      while (done + 1 < LossGuard::kSteps) step();
      if (group.rank() == 1) {
        EXPECT_ERROR(step(), NumericError,
                     spreads
                         ? "epoch 1, step 2: expected a finite loss, got nan (first bad tensor: "
                           "gradient of weight; samples 11 21; last checkpoint: none)"
                         : "epoch 1, step 2: expected a finite loss, got nan (first bad tensor: "
                           "the loss; samples 11 21; last checkpoint: none)");
      } else {
        EXPECT_ERROR(step(), DistributedError,
                     "epoch 1, step 2: expected a finite loss on every rank, got NaN or infinity "
                     "on rank 1; hint: see the error of rank 1");
      }
    });
  }
}

TEST_ON_RANKS(TrainingMonitorOfRanks, AllSaveAndStopAfterTheSameStepWhenOneIsTold, 2) {
  OneWeight model;
  std::int64_t step = 0;
  std::int64_t saved_at = 0;
  const auto monitor = begun(group, model, {.save = [&] {
                               saved_at = step;
                               return std::string("out/checkpoint_0");
                             }});
  std::string text = "not stopped";
  try {
    while (step < 100'000) {
      if (++step == 50 && group.rank() == 1) std::raise(SIGTERM);
      average_gradient(group, model, 1.0);
      monitor->step(batch_of_two(group), torch::tensor(1.0F));
    }
  } catch (const StoppedBySignal& stop) {
    EXPECT_EQ(stop.signal(), SIGTERM);
    text = stop.what();
  }
  EXPECT_GE(saved_at, 50);
  EXPECT_EQ(saved_at, step);
  const auto steps = group.all_gather_into_tensor(torch::tensor(step));
  EXPECT_EQ(steps[0].item<std::int64_t>(), steps[1].item<std::int64_t>());
  EXPECT_EQ(text, group.rank() == 0 ? stop_line(SIGTERM, step, "out/checkpoint_0") : "");
}

// Without another step: a slow save takes most of the time that a launcher grants.
TEST_ON_RANKS(TrainingMonitorOfRanks, ASignalDuringASaveStopsAllAtItsEnd, 2) {
  OneWeight model;
  const auto monitor = begun(group, model);
  average_gradient(group, model, 1.0);
  monitor->step(batch_of_two(group), torch::tensor(1.0F));
  after_save()("out/checkpoint_0");
  if (group.rank() == 1) std::raise(SIGHUP);
  std::string text = "not stopped";
  try {
    after_save()("out/checkpoint_1");
  } catch (const StoppedBySignal& stop) {
    text = stop.what();
  }
  EXPECT_EQ(text, group.rank() == 0 ? stop_line(SIGHUP, 1, "out/checkpoint_1") : "");
}

// Between the last time that the ranks asked each other and the end of the training.
TEST_ON_RANKS(TrainingMonitorOfRanks, ASignalAfterTheLastStepCountsToo, 2) {
  OneWeight model;
  const auto monitor = begun(group, model);
  average_gradient(group, model, 1.0);
  monitor->step(batch_of_two(group), torch::tensor(1.0F));
  if (group.rank() == 0) std::raise(SIGINT);
  EXPECT_THROW(monitor->end_training(), StoppedBySignal);
}

}  // namespace
}  // namespace ladder
