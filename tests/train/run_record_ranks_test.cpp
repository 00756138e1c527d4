// SPDX-License-Identifier: Apache-2.0
// What RunRecord does on several ranks.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <csignal>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "ladder/core/interruption.h"
#include "ladder/train/run_record.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace ladder {
namespace {

struct OneWeight : torch::nn::Module {
  OneWeight() { weight = register_parameter("weight", torch::ones({3})); }
  torch::Tensor weight;
};

struct Digits : Dataset {
  std::int64_t size() const override { return 6; }
  std::string description() const override { return "six digits"; }
  Batch get_batch(std::span<const std::int64_t> /*indices*/) const override { return {}; }
};

Batch batch_of_two(const ProcessGroup& group) {
  return {.labels = torch::zeros({2}, torch::kInt64),
          .indices = torch::tensor({10 + group.rank(), 20 + group.rank()}),
          .global_size = 4,
          .world_size = 2};
}

void begin(RunRecord& record, const OneWeight& model, RunCheckpoints checkpoints = {}) {
  const DataLoader loader(std::make_shared<Digits>(), {.batch_size = 2});
  record.begin({.checkpoints = std::move(checkpoints)}, loader, loader, model);
  record.begin_epoch(1);
}

RunRecordOptions quiet() { return {.quiet = true}; }

// As DistributedDataParallel leaves it: the same on all.
void average_gradient(const ProcessGroup& group, OneWeight& model, double own) {
  auto gradient = torch::full({3}, own, torch::kFloat32);
  group.all_reduce(gradient);
  model.weight.mutable_grad() = gradient / group.world_size();
}

TEST(RunRecordOfRanks, AllStopInTheStepInWhichOneHasABadLoss) {
  run_ranks(2, [](const ProcessGroup& group) {
    OneWeight model;
    RunRecord record(quiet(), Recipe({}, group.world_size()), group);
    begin(record, model);
    const auto step = [&](double loss) {
      average_gradient(group, model, loss);
      record.step(batch_of_two(group), torch::tensor(static_cast<float>(loss)), model);
    };
    step(1.0);
    if (group.rank() == 1) {
      EXPECT_ERROR(step(std::numeric_limits<double>::quiet_NaN()), NumericError,
                   "epoch 1, step 2: expected a finite loss, got nan (first bad tensor: gradient "
                   "of weight; samples 11 21; last checkpoint: none)");
    } else {
      EXPECT_ERROR(step(1.0), DistributedError,
                   "epoch 1, step 2: expected finite gradients, got NaN or infinity from another "
                   "rank");
    }
  });
}

TEST(RunRecordOfRanks, AllSaveAndStopAfterTheSameStepWhenOneIsTold) {
  run_ranks(2, [](const ProcessGroup& group) {
    OneWeight model;
    std::int64_t step = 0;
    std::int64_t saved_at = 0;
    RunRecord record(quiet(), Recipe({}, group.world_size()), group);
    begin(record, model, {.save = [&] {
            saved_at = step;
            return std::string("out/checkpoint_0");
          }});
    std::string text = "not stopped";
    try {
      while (step < 100'000) {
        if (++step == 50 && group.rank() == 1) std::raise(SIGTERM);
        average_gradient(group, model, 1.0);
        record.step(batch_of_two(group), torch::tensor(1.0F), model);
      }
    } catch (const Interruption& stop) {
      EXPECT_EQ(stop.signal(), SIGTERM);
      text = stop.what();
    }
    EXPECT_GE(saved_at, 50);
    EXPECT_EQ(saved_at, step);
    const auto steps = group.all_gather_into_tensor(torch::tensor(step));
    EXPECT_EQ(steps[0].item<std::int64_t>(), steps[1].item<std::int64_t>());
    EXPECT_EQ(text, group.rank() == 0 ? stop_line(SIGTERM, step, "out/checkpoint_0") : "");
  });
}

// Between the last time that the ranks asked each other and the end of the training.
TEST(RunRecordOfRanks, ASignalAfterTheLastStepCountsToo) {
  run_ranks(2, [](const ProcessGroup& group) {
    OneWeight model;
    RunRecord record(quiet(), Recipe({}, group.world_size()), group);
    begin(record, model);
    average_gradient(group, model, 1.0);
    record.step(batch_of_two(group), torch::tensor(1.0F), model);
    if (group.rank() == 0) std::raise(SIGINT);
    EXPECT_THROW(record.begin_testing(), Interruption);
  });
}

}  // namespace
}  // namespace ladder
