// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/pipeline_stage.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "ladder/amp/grad_scaler.h"
#include "ladder/comm/process_group.h"
#include "ladder/core/error.h"
#include "ladder/nn/random_scope.h"
#include "ladder/optim/clip_grad.h"
#include "ladder/optim/sgd.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "ladder/parallel/zero_redundancy_optimizer.h"
#include "mnist/networks.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/small_modules.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/training.h"

namespace ladder {
namespace {

torch::Tensor loss_of_part(const torch::Tensor& output, const Batch& part) {
  return basicnet().loss(output, part);
}

// Gradients of one process, which calls backward for each micro-batch.
void accumulate(Model& model, const Batch& batch, std::int64_t size) {
  for (std::int64_t begin = 0; begin < batch.size(); begin += size) {
    auto part = part_of(batch, begin, std::min(size, batch.size() - begin), 1);
    part.global_size = batch.size();
    loss_of(model, basicnet(), part).backward();
  }
}

// The layers of this rank.
std::shared_ptr<Model> own_layers(const ProcessGroup& group, const Recipe& recipe = basicnet()) {
  const auto own = first_model(recipe);
  mnist::keep_layers(*own, group.rank(), group.world_size());
  return own;
}

torch::Tensor run_step(PipelineStage& stage, const Batch& batch) {
  const RandomScope random({basicnet().seed(), batch.epoch, batch.positions});
  return stage.step(batch, loss_of_part);
}

void expect_gradients_of(const Model& own, const Model& whole) {
  const auto expected = whole.named_parameters();
  for (const auto& item : own.named_parameters()) {
    EXPECT_TRUE(torch::equal(item.value().grad(), expected[item.key()].grad())) << item.key();
  }
}

// Those of the layers that `rank` of three has.
void drop_gradients_of_rank(Model& whole, int rank) {
  if (rank < 0) return;
  const auto layers = first_model(basicnet());
  mnist::keep_layers(*layers, rank, 3);
  const auto parameters = whole.named_parameters();
  for (const auto& item : layers->named_parameters()) {
    parameters[item.key()].mutable_grad().reset();
  }
}

TEST(PipelineStage, HasTheGradientsOfAccumulationInBothSchedules) {
  for (const int world : {1, 2, 4}) {
    run_ranks(world, [](const ProcessGroup& group) {
      const auto batch = random_batch(11);
      const auto whole = first_model(basicnet());
      whole->train();
      accumulate(*whole, batch, 3);  // 3, 3, 3, 2
      for (const auto schedule : {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B}) {
        const auto own = own_layers(group);
        PipelineStage stage(own, group, {.micro_batches = 4, .schedule = schedule});
        stage.train();
        const auto loss = run_step(stage, batch);
        expect_gradients_of(*own, *whole);
        EXPECT_FALSE(loss.requires_grad());
        EXPECT_NEAR(loss.item<double>(), loss_of(*whole, basicnet(), batch).item<double>(), 1e-5);
        const int stages_from_here = group.world_size() - group.rank();
        const int most = schedule == PipelineSchedule::kGPipe ? 4 : std::min(4, stages_from_here);
        EXPECT_EQ(stage.most_in_flight(), static_cast<std::size_t>(most));
      }
    });
  }
}

// Fine-tuning trains the last layers alone.
TEST(PipelineStage, TrainsTheOtherStagesOfOneThatIsFrozen) {
  for (const int frozen : {0, 1, 2}) {
    run_ranks(3, [frozen](const ProcessGroup& group) {
      const auto batch = random_batch(6);
      const auto whole = first_model(basicnet());
      accumulate(*whole, batch, 3);
      const auto own = own_layers(group);
      std::optional<FreezeGuard> guard;
      if (group.rank() == frozen) guard.emplace(*own);
      PipelineStage stage(own, group, {.micro_batches = 2});
      run_step(stage, batch);
      if (group.rank() != frozen) return expect_gradients_of(*own, *whole);
      for (const auto& parameter : own->parameters()) EXPECT_FALSE(parameter.grad().defined());
    });
  }
}

// A stage alone knows neither the norm of the network nor an overflow in another stage.
TEST(PipelineStage, ClipsAndSkipsStepsAsOneNetwork) {
  for (const int frozen : {-1, 1}) {
    run_ranks(3, [frozen](const ProcessGroup& group) {
      const auto batch = random_batch(6);
      const auto whole = first_model(basicnet());
      const auto own = own_layers(group);
      std::optional<FreezeGuard> guard;
      if (group.rank() == frozen) guard.emplace(*own);
      PipelineStage stage(own, group, {.micro_batches = 2});
      GradScaler scaler({.init_scale = 8.0});
      SGD optimizer(own->parameters(), {.lr = 0.1});
      const auto run = [&] {
        const RandomScope random({basicnet().seed(), batch.epoch, batch.positions});
        stage.step(batch, [&](const torch::Tensor& output, const Batch& part) {
          return scaler.scale(loss_of_part(output, part));
        });
      };
      run();
      scaler.unscale_(optimizer);
      const auto norm = clip_grad_norm_(own->parameters(), 0.5);
      accumulate(*whole, batch, 3);
      drop_gradients_of_rank(*whole, frozen);
      EXPECT_TRUE(torch::equal(norm, clip_grad_norm_(whole->parameters(), 0.5)));
      if (group.rank() != frozen) expect_gradients_of(*own, *whole);
      EXPECT_TRUE(scaler.step(optimizer).taken());
      scaler.update();
      optimizer.zero_grad();
      run();
      if (group.rank() == 2) own->parameters().front().mutable_grad().fill_(INFINITY);
      EXPECT_FALSE(scaler.step(optimizer).taken());
      scaler.update();
      EXPECT_EQ(scaler.get_scale(), 4.0);
    });
  }
}

struct OtherBatch {
  const char* error;
  void (*make)(Batch& batch, PipelineOptions& options);
};

// The loss would be one of wrong pairs, or the ranks wait for each other.
TEST(PipelineStage, RefusesRanksWithOtherBatches) {
  const std::array<OtherBatch, 4> differences = {{
      {"samples 8, as on rank 0, got samples 6",
       [](auto& batch, auto&) { batch = random_batch(6); }},
      {"hash of indices ", [](auto& batch, auto&) { batch.indices = batch.indices + 1; }},
      {"hash of targets ", [](auto& batch, auto&) { batch.targets = batch.targets.flip(0); }},
      {"micro_batches 4, as on rank 0, got micro_batches 2",
       [](auto&, auto& options) { options.micro_batches = 2; }},
  }};
  for (const auto& difference : differences) {
    const auto run = [&](const ProcessGroup& group) {
      auto batch = random_batch(8);
      batch.indices = torch::arange(8);
      batch.targets = torch::arange(8);
      PipelineOptions options;
      if (group.rank() == 1) difference.make(batch, options);
      PipelineStage stage(own_layers(group), group, options);
      run_step(stage, batch);
    };
    expect_ended_with(end_of_group(2, run, {.backend = "shm"}), 4,
                      std::string("batch of the pipeline on rank 1: expected ") + difference.error);
  }
  const auto evaluate = [](const ProcessGroup& group) {
    PipelineStage stage(own_layers(group), group);
    stage.eval();
    stage.forward(random_batch(group.rank() == 0 ? 8 : 6).inputs);
  };
  expect_ended_with(end_of_group(2, evaluate, {.backend = "shm"}), 4, "expected samples 8");
}

// Layers of equal shapes would be averaged.
TEST_ON_RANKS(PipelineStage, RefusesToBeTakenForAReplica, 2) {
  const auto own = std::make_shared<OneWeight>();
  const PipelineStage stage(own, group);
  EXPECT_ERROR(DistributedDataParallel(own, group), UsageError,
               "model: the parameters are divided over these ranks already");
  SGD optimizer(own->parameters());
  EXPECT_ERROR(ZeroRedundancyOptimizer(optimizer, group), UsageError,
               "ZeroRedundancyOptimizer: the parameters are divided over these ranks already");
}

// A layer whose output does not depend on its input, in the last stage.
struct Scale : IdleModel {
  explicit Scale(bool uses) : uses_input(uses) { register_parameter("scale", torch::ones({1})); }
  torch::Tensor forward(const Inputs& inputs) override {
    const auto& x = inputs.only();
    return (uses_input ? x : torch::ones_like(x)) * parameters().front();
  }
  bool uses_input;
};

TEST_ON_RANKS(PipelineStage, SendsZerosBackWhereAStageDoesNotUseItsInput, 2) {
  const auto own = std::make_shared<Scale>(/*uses=*/group.rank() == 0);
  PipelineStage stage(own, group, {.micro_batches = 2});
  stage.step(random_batch(4),
             [](const torch::Tensor& output, const Batch&) { return output.mean(); });
  EXPECT_EQ(own->parameters().front().grad().item<float>(), group.rank() == 0 ? 0.0F : 2.0F);
  PipelineStage alone(std::make_shared<Scale>(/*uses=*/true), ProcessGroup::single());
  const auto without_graph = [](const torch::Tensor& output, const Batch&) {
    return output.mean().detach();
  };
  EXPECT_THROW(alone.step(random_batch(4), without_graph), c10::Error);
}

// The last batch of an epoch.
TEST_ON_RANKS(PipelineStage, TakesBatchesWithFewerSamplesThanMicroBatches, 2) {
  const auto own = own_layers(group);
  PipelineStage stage(own, group, {.micro_batches = 8});
  for (const std::int64_t size : {9, 2, 1}) {
    const auto batch = random_batch(size);
    const auto whole = first_model(basicnet());
    accumulate(*whole, batch, size == 9 ? 2 : 1);
    stage.zero_grad();
    run_step(stage, batch);
    expect_gradients_of(*own, *whole);
  }
  EXPECT_ERROR(PipelineStage(own, group, {.micro_batches = 0}), UsageError,
               "micro_batches: expected at least 1, got 0");
}

TEST_ON_RANKS(PipelineStage, EvaluatesAndGathersTheWholeNetwork, 3) {
  const Recipe stack({.name = "stack", .depth = 4});
  for (const auto* recipe : {&basicnet(), &convnet(), &stack}) {
    const auto whole = first_model(*recipe);
    whole->eval();
    const auto own = own_layers(group, *recipe);
    PipelineStage stage(own, group);
    stage.eval();
    const auto batch = random_batch(5);
    EXPECT_TRUE(torch::equal(stage.forward(batch.inputs), whole->forward(batch.inputs)));

    const torch::NoGradGuard no_grad;
    for (auto& tensor : own->parameters()) tensor.add_(1);
    for (auto& tensor : whole->parameters()) tensor.add_(1);
    const auto gathered = recipe->make_model();
    stage.copy_weights_to(*gathered);
    const auto expected = whole->named_parameters();
    for (const auto& item : gathered->named_parameters()) {
      EXPECT_TRUE(torch::equal(item.value(), expected[item.key()])) << item.key();
    }
  }
  EXPECT_ERROR(mnist::keep_layers(*convnet().make_model(), 0, 4), UsageError,
               "pipeline: expected at most 3 stages, one per layer, got 4");
}

enum class Phase { kForward, kBackward, kNone };

// A layer that ends its process in the `phase` of the second micro-batch.
struct Lost : IdleModel {
  explicit Lost(Phase when) : phase(when) { register_parameter("scale", torch::ones({1})); }
  torch::Tensor forward(const Inputs& inputs) override {
    const bool now = ++calls == 2;
    if (now && phase == Phase::kForward) kill(getpid(), SIGKILL);
    const auto output = inputs.only() * parameters().front();
    if (now && phase == Phase::kBackward) {
      output.register_hook([](const torch::Tensor&) { kill(getpid(), SIGKILL); });
    }
    return output;
  }
  Phase phase;
  int calls = 0;
};

TEST(PipelineStage, NamesTheRankThatIsLostInEachPhase) {
  for (const int lost : {0, 1, 2}) {
    for (const auto phase : {Phase::kForward, Phase::kBackward}) {
      const TemporaryFolder folder;
      const auto step = [&](const ProcessGroup& group) {
        signal(SIGTERM, SIG_IGN);  // of spawn, which ends the other ranks
        group.barrier();           // no rank is lost before all ignore it
        const auto layers = std::make_shared<Lost>(group.rank() == lost ? phase : Phase::kNone);
        PipelineStage stage(layers, group, {.schedule = PipelineSchedule::k1F1B});
        auto batch = batch_of(8);
        batch.inputs = torch::ones({8, 3});
        try {
          stage.step(batch, [](const torch::Tensor& output, const Batch&) { return output.sum(); });
        } catch (const DistributedError& error) {
          folder.write(std::to_string(group.rank()), error.what());
          throw;
        }
      };
      EXPECT_EQ(end_of_group(3, step, {.backend = "shm"}).exit_code, 4);
      EXPECT_EQ(folder.names().size(), 2U);
      std::string all;
      for (const auto& name : folder.names()) all += folder.read(name) + "\n";
      const auto named = "rank " + std::to_string(lost) + " has ended";
      EXPECT_NE(all.find(named), std::string::npos) << all;
    }
  }
}

}  // namespace
}  // namespace ladder
