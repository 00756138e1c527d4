// SPDX-License-Identifier: Apache-2.0
#include "ladder/graph/step_graph.h"

#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ladder/accelerate/accelerator.h"
#include "ladder/amp/autocast.h"
#include "ladder/amp/grad_scaler.h"
#include "ladder/comm/process_group.h"
#include "ladder/nn/sample_noise.h"
#include "ladder/optim/adam.h"
#include "ladder/optim/clip_grad.h"
#include "ladder/optim/lr_scheduler.h"
#include "ladder/optim/rmsprop.h"
#include "ladder/optim/sgd.h"
#include "ladder/parallel/convert_sync_batchnorm.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "tests/support/expect_error.h"
#include "tests/support/training.h"

namespace ladder {
namespace {

constexpr double kRate = 0x1p-10;  // as exact in float32, which a GPU keeps, as in float64
constexpr std::int64_t kBatches = 6;

// A network with its optimizer on a GPU, trained by steps of a graph or without one.
struct Trial {
  explicit Trial(const Recipe& given, torch::ScalarType dtype = torch::kFloat32)
      : recipe(given), scaler({.enabled = dtype == torch::kFloat16}) {
    const auto alone = ProcessGroup::single();
    model = std::make_shared<AutocastModel>(first_model(recipe), dtype);
    convert_sync_batchnorm(*model, alone);
    model->to(torch::kCUDA);
    if (recipe.name() == "convnet") {
      optimizer =
          std::make_unique<SGD>(model->parameters(), SgdOptions{.lr = kRate, .momentum = 0.5});
    } else {
      optimizer = std::make_unique<AdamW>(model->parameters(), AdamWOptions{.lr = kRate});
    }
  }

  torch::Tensor step(const Batch& batch) {
    optimizer->zero_grad();
    const auto loss = loss_of(*model, recipe, batch);
    scaler.scale(loss).backward();
    if (scaler.is_enabled()) scaler.unscale_(*optimizer);
    clip_grad_norm_(model->parameters(), 1.0);
    scaler.step(*optimizer);
    if (scaler.is_enabled()) scaler.update();
    return loss;
  }

  // `kBatches` batches and a short one; returns their losses.
  std::vector<double> train_epoch(std::int64_t epoch, StepGraph* graph) {
    std::vector<torch::Tensor> losses;
    for (std::int64_t i = 0; i <= kBatches; ++i) {
      auto batch = random_batch(i < kBatches ? 8 : 5, static_cast<std::uint64_t>(i + 1));
      batch.epoch = epoch;
      const auto run = [this](const Batch& moved) { return step(moved); };
      losses.push_back(graph ? graph->run(batch, run) : step(batch.to(torch::kCUDA)));
    }
    std::vector<double> values;
    for (const auto& loss : losses) values.push_back(loss.item<double>());
    return values;
  }

  const Recipe& recipe;
  GradScaler scaler;
  std::shared_ptr<Model> model;
  std::unique_ptr<FusedOptimizer> optimizer;
};

// The kernels of a GPU add in changing orders; those of the stand-in do not.
void expect_same(const torch::Tensor& a, const torch::Tensor& b) {
#ifdef LADDER_CUDA
  EXPECT_LT((a - b).abs().max().item<double>(), 2e-3);
#else
  EXPECT_TRUE(torch::equal(a, b));
#endif
}

void expect_same(const Trial& a, const Trial& b) {
  const auto in_a = a.model->parameters();
  const auto in_b = b.model->parameters();
  for (std::size_t i = 0; i < in_a.size(); ++i) {
    expect_same(in_a[i].detach(), in_b[i].detach());
    expect_same(in_a[i].grad(), in_b[i].grad());
  }
}

void expect_near(const std::vector<double>& a, const std::vector<double>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-3) << "batch " << i;
}

TEST(StepGraph, CallsTheStepOnTheCpu) {
  auto weight = torch::ones({2}, torch::requires_grad());
  torch::optim::AdamW optimizer({weight}, {});
  StepGraph graph(torch::kCPU, optimizer);
  const auto batch = random_batch(2);
  for (int i = 0; i < 20; ++i) {
    graph.run(batch, [&](const Batch& given) {
      EXPECT_EQ(&given, &batch);
      return weight.sum() * i;
    });
  }
  EXPECT_EQ(graph.replays(), 0);
}

// Other learning rates and dropout masks in each epoch, a short last batch, clipped gradients, a
// scaler, SyncBatchNorm of one rank; and the optimizer loaded again in between.
TEST(StepGraphOnAGpu, TrainsAsWithoutAGraph) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no GPU";
  for (const auto& recipe : {&basicnet(), &convnet()}) {
    for (const auto dtype : {torch::kFloat32, torch::kBFloat16, torch::kFloat16}) {
      SCOPED_TRACE(recipe->name() + " " + torch::toString(dtype));
      Trial plain(*recipe, dtype), captured(*recipe, dtype);
      StepGraph graph(torch::kCUDA, *captured.optimizer, {.warmup_steps = 2});
      for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
        for (auto* trial : {&plain, &captured}) {
          trial->optimizer->param_groups()[0].options().set_lr(kRate /
                                                               (epoch % 2 == 0 ? 1.0 : 2.0));
          if (epoch < 2) continue;
          auto state = trial->optimizer->state_dict(*trial->model);
          for (auto& [name, tensor] : state.tensors) tensor = tensor.clone();
          trial->optimizer->load_state_dict(*trial->model, state, "state");
        }
        expect_near(captured.train_epoch(epoch, &graph), plain.train_epoch(epoch, nullptr));
        EXPECT_EQ(graph.replays(), (std::vector{4, 10, 14}[static_cast<std::size_t>(epoch)]));
      }
      expect_same(plain, captured);
      EXPECT_EQ(plain.scaler.metrics(), captured.scaler.metrics());
    }
  }
}

TEST(StepGraphOnAGpu, ShowsTheGradientsOfEachStep) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no GPU";
  auto weight = torch::ones({2}, torch::TensorOptions(torch::kCUDA).requires_grad(true));
  SGD optimizer({weight}, {.lr = 0.0});
  StepGraph graph(torch::kCUDA, optimizer, {.warmup_steps = 1});
  for (const std::int64_t size : {1, 1, 1, 3, 1}) {
    Batch batch;
    batch.inputs = torch::full({size, 2}, static_cast<double>(size + graph.replays()));
    graph.run(batch, [&](const Batch& given) {
      optimizer.zero_grad();
      const auto loss = (given.inputs.only() * weight).sum();
      loss.backward();
      return loss;
    });
    const auto expected = batch.inputs.only().sum(0);
    EXPECT_TRUE(torch::equal(weight.grad().cpu(), expected)) << weight.grad() << expected;
  }
  EXPECT_EQ(graph.replays(), 3);
}

// zero_grad() may stand outside of the step. Without one a replay would write and not add.
TEST(StepGraphOnAGpu, RefusesToAddGradients) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no GPU";
  auto weight = torch::ones({2}, torch::TensorOptions(torch::kCUDA).requires_grad(true));
  SGD optimizer({weight});
  Batch batch;
  batch.inputs = torch::ones({1, 2});
  const auto step = [&](const Batch& given) {
    const auto loss = (given.inputs.only() * weight).sum();
    loss.backward();
    return loss;
  };
  constexpr const char* kAdds = "StepGraph: the step adds to the gradients of the step before";
  StepGraph adding(torch::kCUDA, optimizer, {.warmup_steps = 1});
  adding.run(batch, step);
  EXPECT_ERROR(adding.run(batch, step), UsageError, kAdds, "begin it with optimizer.zero_grad()");
  StepGraph outside(torch::kCUDA, optimizer, {.warmup_steps = 1});
  for (int i = 0; i < 4; ++i) {
    optimizer.zero_grad();
    outside.run(batch, step);
    EXPECT_TRUE(torch::equal(weight.grad().cpu(), torch::ones({2})));
  }
  EXPECT_EQ(outside.replays(), 3);
  EXPECT_ERROR(outside.run(batch, step), UsageError, kAdds);
}

// The loop of docs/reference/5-accelerator.md.
TEST(StepGraphOnAGpu, TakesForwardAndBackwardOfAnAccelerator) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no GPU";
  std::vector<torch::Tensor> weights;
  for (const bool replays : {false, true}) {
    Accelerator accelerator({.mixed_precision = Precision::kBf16, .quiet = true});
    const auto network = first_model(basicnet());
    auto adamw = std::make_shared<AdamW>(network->parameters(), AdamWOptions{.lr = kRate});
    auto schedule = std::make_shared<StepLR>(*adamw, StepLrOptions{.step_size = 2, .gamma = 0.5});
    auto [model, optimizer, scheduler] = accelerator.prepare(network, adamw, schedule);
    StepGraph graph(accelerator.device(), optimizer->optimizer(), {.warmup_steps = 1});
    for (std::int64_t i = 0; i < kBatches; ++i) {
      const auto step = [&, &model = model](const Batch& own) {
        const auto loss = loss_of(*model, basicnet(), own);
        accelerator.backward(loss);
        return loss;
      };
      const auto batch = random_batch(8, static_cast<std::uint64_t>(i + 1));
      replays ? graph.run(batch, step) : step(batch.to(torch::kCUDA));
      accelerator.clip_grad_norm_(model->parameters(), 1.0);
      optimizer->step();
      scheduler->step();
      optimizer->zero_grad();
    }
    EXPECT_EQ(graph.replays(), replays ? kBatches - 1 : 0);
    weights.push_back(model->parameters()[0].detach());
  }
  expect_same(weights[0], weights[1]);
}

TEST(StepGraphOnAGpu, CapturesAgainWhereAParameterIsFrozen) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no GPU";
  Trial trial(basicnet());
  StepGraph graph(torch::kCUDA, *trial.optimizer, {.warmup_steps = 1});
  auto frozen = trial.model->parameters()[0];
  for (int i = 0; i < 5; ++i) {
    if (i == 3) frozen.requires_grad_(false);
    const auto before = frozen.detach().clone();
    graph.run(random_batch(4), [&](const Batch& batch) { return trial.step(batch); });
    EXPECT_EQ(torch::equal(frozen, before), i >= 3) << i;
  }
  EXPECT_EQ(graph.replays(), 3);
}

TEST(StepGraphOnAGpu, RefusesAStepThatReadsOnTheHost) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no GPU";
  Trial trial(basicnet());
  const auto run = [&](const auto& read) {
    StepGraph graph(torch::kCUDA, *trial.optimizer, {.warmup_steps = 1});
    for (int i = 0; i < 2; ++i) {
      graph.run(random_batch(4), [&](const Batch& batch) {
        const auto loss = trial.step(batch);
        read(batch, loss);
        return loss;
      });
    }
  };
  using Read = void (*)(const Batch&, const torch::Tensor&);
  const std::vector<std::pair<Read, std::string>> reads = {
      {[](const Batch&, const torch::Tensor& loss) { loss.item<double>(); }, "move item() out"},
      {[](const Batch&, const torch::Tensor& loss) { loss.cpu(); },
       "move cpu(), to() or a print out"},
      {[](const Batch& batch, const torch::Tensor&) { batch.targets.nonzero(); },
       "move nonzero() or an index by a mask out"}};
  for (const auto& [read, hint] : reads) {
    EXPECT_ERROR(run(read), UsageError, "StepGraph: the step cannot be captured: aten::", hint);
  }
  EXPECT_ERROR(run([](const Batch& batch, const torch::Tensor&) {
                 const RandomScope random({1, batch.epoch, batch.positions});
                 sample_noise({3});
               }),
               UsageError, "sample_noise: a captured step repeats the numbers of its capture");
  // The failed captures have changed nothing.
  Trial same(basicnet());
  for (int i = 0; i < 4; ++i) same.step(random_batch(4).to(torch::kCUDA));
  expect_same(trial.model->parameters()[0].detach(), same.model->parameters()[0].detach());
  EXPECT_ERROR(run([&](const Batch&, const torch::Tensor&) {
                 auto& group = trial.optimizer->param_groups()[0].options();
                 group.set_lr(0.5 * group.get_lr());
               }),
               UsageError, "StepGraph: the step changes the learning rate");
}

TEST(StepGraphOnAGpu, RefusesWhatItWouldTrainWrong) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no GPU";
  auto weight = torch::ones({2}, torch::TensorOptions(torch::kCUDA).requires_grad(true));
  torch::optim::AdamW of_libtorch({weight}, {});
  RMSprop rmsprop({weight});
  SGD sgd({weight});
  EXPECT_ERROR(StepGraph(torch::kCUDA, of_libtorch), UsageError,
               "StepGraph: an optimizer that keeps numbers on the host");
  EXPECT_ERROR(StepGraph(torch::kCUDA, rmsprop), UsageError,
               "StepGraph: the kernels of this optimizer keep their learning rate");
  EXPECT_ERROR(StepGraph(torch::kCUDA, sgd, {.warmup_steps = 0}), UsageError,
               "StepGraph warmup_steps: expected a number >= 1, got 0");
  const Trial trial(basicnet());
  const DistributedDataParallel wrapper(trial.model, ProcessGroup::single());
  EXPECT_ERROR(StepGraph(torch::kCUDA, *trial.optimizer), UsageError,
               "StepGraph: a parameter of a DistributedDataParallel");
  StepGraph graph(torch::kCUDA, sgd);
  EXPECT_ERROR(graph.run(slice_of(random_batch(4), 0, 2), [&](const Batch&) { return weight; }),
               UsageError, "StepGraph: a batch that 2 ranks share");
}

}  // namespace
}  // namespace ladder
