// SPDX-License-Identifier: Apache-2.0
#include "ladder/amp/grad_scaler.h"

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "ladder/amp/autocast.h"
#include "ladder/optim/adam.h"
#include "ladder/optim/sgd.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "ladder/parallel/replica_check.h"
#include "tests/support/ranks.h"
#include "tests/support/replicas.h"
#include "tests/support/small_net.h"
#include "tests/support/training.h"

namespace ladder {
namespace {

using Optimizer = std::unique_ptr<torch::optim::Optimizer>;
using MakeOptimizer = std::function<Optimizer(std::vector<torch::Tensor>)>;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int kSteps = 6;
constexpr int kBadStep = 2;

// An inf on one rank, in step kBadStep.
enum class Injected { kInLoss, kInOneGradient, kInImages };

struct Fault {
  Injected where;
  int rank;
};

struct Trained {
  std::vector<bool> taken;     // a step each
  std::vector<double> scales;  // after each step
  std::vector<double> moved;   // how far each step moved the weights
  torch::Tensor weights;       // at the end
};

Batch slice_of_step(int step, const ProcessGroup& group) {
  const auto seed = static_cast<std::uint64_t>(step + 1);
  return slice_of(random_batch(2 * group.world_size() + 1, seed), group.rank(), group.world_size());
}

void backward_with(const Fault& fault, Model& model, GradScaler& scaler, Batch batch) {
  if (fault.where == Injected::kInImages) {
    batch.inputs = batch.inputs.only().clone();
    batch.inputs.only()[0][0][14][14] = kInf;
  }
  auto loss = loss_of(model, basicnet(), batch);
  if (fault.where == Injected::kInLoss) loss = loss * kInf;
  if (fault.where != Injected::kInOneGradient) return scaler.scale(loss).backward();
  // One element of the last layer's bias, as its gradient goes by.
  const auto bias = model.parameters().back();
  const unsigned hook = bias.register_hook([](const torch::Tensor& gradient) {
    auto changed = gradient.clone();
    changed[0] = kInf;
    return changed;
  });
  scaler.scale(loss).backward();
  bias.remove_hook(hook);
}

Trained run_with(const Fault& fault, const MakeOptimizer& make_optimizer,
                 const ProcessGroup& group) {
  const auto model = wrapped(small_net(), group);
  const auto optimizer = make_optimizer(model->parameters());
  GradScaler scaler({.init_scale = 1024.0, .growth_interval = 3});
  Trained run;
  for (int step = 0; step < kSteps; ++step) {
    const auto batch = slice_of_step(step, group);
    const auto before = flat_weights(*model);
    model->zero_grad();
    if (step == kBadStep && group.rank() == fault.rank) {
      backward_with(fault, *model, scaler, batch);
    } else {
      scaler.scale(loss_of(*model, basicnet(), batch)).backward();
    }
    run.taken.push_back(scaler.step(*optimizer).taken());
    scaler.update();
    run.scales.push_back(scaler.get_scale());
    run.moved.push_back((flat_weights(*model) - before).norm().item<double>());
    require_equal_parameters(*model, group);
  }
  EXPECT_EQ(scaler.skipped_steps(), 1);
  run.weights = flat_weights(*model);
  return run;
}

// The same run without a scaler, and without the bad step.
torch::Tensor weights_without_the_bad_step(const MakeOptimizer& make_optimizer,
                                           const ProcessGroup& group) {
  const auto model = wrapped(small_net(), group);
  const auto optimizer = make_optimizer(model->parameters());
  for (int step = 0; step < kSteps; ++step) {
    if (step == kBadStep) continue;
    run_backward(*model, basicnet(), slice_of_step(step, group));
    optimizer->step();
  }
  return flat_weights(*model);
}

// Every rank expects the same, so all ranks did the same. A scale is a power of two: what it
// multiplies and divides keeps its bits.
void expect_one_skipped_step(const Fault& fault, const MakeOptimizer& make_optimizer,
                             const torch::Tensor& expected, const ProcessGroup& group) {
  const testing::ScopedTrace trace("fault", 0, static_cast<int>(fault.where));
  const auto run = run_with(fault, make_optimizer, group);
  EXPECT_EQ(run.taken, (std::vector<bool>{true, true, false, true, true, true}));
  EXPECT_EQ(run.scales, (std::vector<double>{1024, 1024, 512, 512, 512, 1024}));
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_EQ(run.moved.at(static_cast<std::size_t>(step)) == 0.0, step == kBadStep) << step;
  }
  EXPECT_TRUE(run.weights.isfinite().all().item<bool>());
  EXPECT_TRUE(torch::equal(run.weights, expected));
}

// Each way to get an inf; on the first rank and on the last.
void expect_all_skip(const MakeOptimizer& make_optimizer, const ProcessGroup& group) {
  const int last = group.world_size() - 1;
  const auto expected = weights_without_the_bad_step(make_optimizer, group);
  for (const Fault fault : {Fault{Injected::kInLoss, 0}, Fault{Injected::kInOneGradient, last},
                            Fault{Injected::kInImages, last}}) {
    expect_one_skipped_step(fault, make_optimizer, expected, group);
  }
}

TEST_ON_RANKS(InfOnOneRank, IsAStepThatAllRanksSkipWithAdamW, 3) {
  expect_all_skip([](const auto& parameters) { return std::make_unique<AdamW>(parameters); },
                  group);
}

TEST_ON_RANKS(InfOnOneRank, IsAStepThatAllRanksSkipWithSgdAndLibTorchsOwn, 3) {
  const SgdOptions options = {.lr = 0.01, .momentum = 0.9};
  expect_all_skip(
      [&](const auto& parameters) { return std::make_unique<SGD>(parameters, options); }, group);
  const auto of_libtorch = torch::optim::SGDOptions(0.01).momentum(0.9);
  expect_all_skip(
      [&](const auto& parameters) {
        return std::make_unique<torch::optim::SGD>(parameters, of_libtorch);
      },
      group);
}

// A large image on rank 1 is more than float16 can hold, and nothing unusual in float32.
std::vector<bool> steps_taken_in(torch::ScalarType dtype, const ProcessGroup& group) {
  const auto model = wrapped(std::make_shared<AutocastModel>(first_model(convnet()), dtype), group);
  SGD optimizer(model->parameters(), {.lr = 1e-6});
  GradScaler scaler({.init_scale = 1024.0});
  std::vector<bool> taken;
  for (int step = 0; step < 4; ++step) {
    auto batch = slice_of_step(step, group);
    if (step == kBadStep && group.rank() == 1) batch.inputs = batch.inputs.only() * 1e5;
    const auto before = flat_weights(*model);
    optimizer.zero_grad();
    scaler.scale(loss_of(*model, convnet(), batch)).backward();
    taken.push_back(scaler.step(optimizer).taken());
    scaler.update();
    EXPECT_EQ(torch::equal(flat_weights(*model), before), !taken.back()) << step;
    require_equal_parameters(*model, group);
  }
  EXPECT_EQ(scaler.get_scale(), dtype == torch::kFloat16 ? 512.0 : 1024.0);
  return taken;
}

TEST_ON_RANKS(InfOnOneRank, IsSkippedWhereFloat16OverflowsAndFloat32DoesNot, 3) {
  EXPECT_EQ(steps_taken_in(torch::kFloat16, group), (std::vector<bool>{true, true, false, true}));
  EXPECT_EQ(steps_taken_in(torch::kFloat32, group), (std::vector<bool>{true, true, true, true}));
}

}  // namespace
}  // namespace ladder
