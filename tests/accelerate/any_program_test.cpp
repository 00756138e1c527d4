// SPDX-License-Identifier: Apache-2.0
// What Accelerator::prepare takes beside this library's own classes.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/map.h>
#include <torch/data/datasets/tensor.h>
#include <torch/data/samplers/sequential.h>
#include <torch/data/transforms/stack.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ladder/accelerate/accelerator.h"
#include "ladder/checkpoint/safetensors.h"
#include "ladder/core/error.h"
#include "ladder/nn/random_scope.h"
#include "ladder/nn/sample_noise.h"
#include "ladder/optim/adam.h"
#include "tests/support/accelerators.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/relative_difference.h"
#include "tests/support/small_net.h"
#include "tests/support/training.h"
#include "tests/support/two_layers.h"

namespace ladder {
namespace {

torch::Tensor square_loss(torch::nn::Linear& net, const torch::Tensor& x) {
  return (net->forward(x) - 1).square().mean();
}

// --- Optimizers ---

using MakeTorchOptimizer =
    std::function<std::shared_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)>;

template <typename Class, typename Options>
MakeTorchOptimizer maker(Options options) {
  return [options](std::vector<torch::Tensor> parameters) {
    return std::make_shared<Class>(std::move(parameters), options);
  };
}

const MakeTorchOptimizer kTorchOptimizers[] = {
    maker<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9)),
    maker<torch::optim::Adam>(torch::optim::AdamOptions(0.1).amsgrad(true)),
    maker<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.1)),
    maker<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.1)),
    maker<torch::optim::LBFGS>(torch::optim::LBFGSOptions(0.1))};

// The weights after `steps` further steps, which load and save a checkpoint if it is named.
torch::Tensor after_steps(Accelerators& ranks, const MakeTorchOptimizer& make, int steps,
                          const std::string& load, const std::string& save) {
  const auto accelerator = ranks.make();
  torch::manual_seed(3);
  torch::nn::Linear net(3, 2);
  auto [model, optimizer] = accelerator->prepare(net, make(net->parameters()));
  if (!load.empty()) accelerator->load_state(load);
  const auto x = torch::arange(6).view({2, 3}) * 0.1;
  for (int step = 0; step < steps; ++step) {
    const auto loss = optimizer->step([&, &model = model, &optimizer = optimizer] {
      optimizer->zero_grad();
      const auto now = square_loss(model, x);
      accelerator->backward(now);
      return now;
    });
    EXPECT_TRUE(loss.defined());
  }
  if (!save.empty()) accelerator->save_state(save);
  return flat_weights(*net);
}

TEST(OptimizersOfTorch, ResumeBitForBitAndTakeAClosure) {
  run_accelerators(1, [](Accelerators& ranks) {
    for (std::size_t i = 0; i < std::size(kTorchOptimizers); ++i) {
      const auto& make = kTorchOptimizers[i];
      const auto folder = ranks.folder().file("checkpoint" + std::to_string(i));
      const auto whole = after_steps(ranks, make, 5, "", "");
      after_steps(ranks, make, 2, "", folder);
      EXPECT_TRUE(torch::equal(after_steps(ranks, make, 3, folder, ""), whole)) << i;
    }
    const auto of_sgd = ranks.folder().file("checkpoint0");
    EXPECT_ERROR(after_steps(ranks, kTorchOptimizers[1], 1, of_sgd, ""), DataError,
                 "expected the state of torch::optim::Adam, got torch::optim::SGD");
    const auto smaller = [](std::vector<torch::Tensor> parameters) {
      parameters.pop_back();
      return std::make_shared<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1));
    };
    EXPECT_ERROR(after_steps(ranks, smaller, 1, of_sgd, ""), DataError,
                 "expected the parameter groups of this optimizer");
  });
}

// Without save().
struct Unsavable : torch::optim::Optimizer {
  explicit Unsavable(std::vector<torch::Tensor> parameters)
      : Optimizer(std::move(parameters), std::make_unique<torch::optim::SGDOptions>(0.1)) {}
  torch::Tensor step(LossClosure /*closure*/) override { return {}; }
};

TEST(Prepare, RefusesAModuleAndAnOptimizerThatNoCheckpointCouldSave) {
  run_accelerators(1, [](Accelerators& ranks) {
    const auto project = ranks.folder().file("project");
    const auto accelerator = ranks.make({.project = {.project_dir = project}});
    torch::nn::Linear net(3, 2);
    torch::nn::Linear rotary(3, 2);
    rotary->register_buffer("angles", torch::ones({2}, torch::kComplexFloat));
    EXPECT_ERROR(accelerator->prepare(rotary), UsageError, "has no dtype ComplexFloat; hint");
    auto model = small_net();
    model->register_buffer("angles", torch::ones({2}, torch::kComplexFloat));
    EXPECT_ERROR(accelerator->prepare(model), UsageError, "has no dtype ComplexFloat; hint");
    EXPECT_ERROR(accelerator->prepare(Unsavable(net->parameters())), UsageError,
                 "its save() writes nothing");
    AdamW adamw(net->parameters(), {});
    const auto optimizer = accelerator->prepare(adamw);
    EXPECT_ERROR(accelerator->backward(net->forward(torch::ones({2, 3})).sum()), UsageError,
                 "the model of a prepared optimizer is not prepared");
    std::filesystem::create_directories(project + "/checkpoints/latest");
    EXPECT_ERROR(ranks.make({.project = {.project_dir = project}}), SystemError,
                 "/checkpoints/latest: replace: File exists; hint: it must be a link: mv ");
  });
}

TEST(Prepare, RefusesNullPointers) {
  run_accelerators(1, [](Accelerators& ranks) {
    const auto accelerator = ranks.make();
    const auto refuses = [&](auto pointer, const char* expected) {
      EXPECT_ERROR(accelerator->prepare(pointer), UsageError, expected);
    };
    refuses(std::shared_ptr<Model>(), "expected a model, not set");
    refuses(std::shared_ptr<torch::nn::LinearImpl>(), "expected a module, not set");
    refuses(std::shared_ptr<AdamW>(), "expected an optimizer, not set");
    refuses(std::shared_ptr<LrScheduler>(), "expected a schedule, not set");
    refuses(std::shared_ptr<torch::optim::StepLR>(), "expected a schedule, not set");
  });
}

// Also when it is prepared again: two reducers would average twice.
TEST(FreeMemory, LeavesAModuleOfTheCallerItsReducer) {
  run_accelerators(2, [](Accelerators& ranks) {
    const auto accelerator = ranks.make();
    torch::nn::Linear net(3, 2);
    accelerator->prepare(net);
    for (const bool again : {false, true}) {
      accelerator->free_memory();
      if (again) accelerator->prepare(net);
      net->zero_grad();
      const auto rows = torch::full({1, 3}, 1.0 + accelerator->process_index());
      accelerator->backward(net->forward(rows).sum());
      EXPECT_TRUE(torch::equal(net->weight.grad(), torch::full({2, 3}, 1.5)));
    }
  });
}

TEST(Prepare, TakesAnOptimizerWhoseFirstGroupIsEmpty) {
  run_accelerators(1, [](Accelerators& ranks) {
    const auto accelerator = ranks.make();
    torch::nn::Linear net(3, 2);
    AdamW adamw(std::vector<torch::Tensor>(), {});
    adamw.add_param_group(parameter_group(net->parameters(), AdamWOptions()));
    auto [model, optimizer] = accelerator->prepare(net, adamw);
    EXPECT_EQ(optimizer->param_groups().size(), 2);
    EXPECT_NO_THROW(accelerator->save_state(ranks.folder().file("checkpoint")));
  });
}

TEST(Prepare, SavesAnOptimizerOfTwoNetworks) {
  for (const int processes : {1, 2}) {
    run_accelerators(processes, [](Accelerators& ranks) {
      const auto run = [&](int steps, const std::string& load, const std::string& save) {
        const auto accelerator = ranks.make();
        torch::manual_seed(3);
        torch::nn::Linear one(3, 2);
        const auto other = std::make_shared<TwoLayers>();
        auto all = one->parameters();
        for (const auto& parameter : other->parameters()) all.push_back(parameter);
        AdamW adamw(all, {});
        auto [a, b, optimizer] = accelerator->prepare(one, other, adamw);
        if (!load.empty()) accelerator->load_state(load);
        for (int step = 0; step < steps; ++step) {
          const auto loss = a->forward(torch::ones({2, 3})).square().sum();
          accelerator->backward(loss + b->forward(torch::ones({2, 2})).square().mean());
          optimizer->step();
          optimizer->zero_grad();
        }
        if (!save.empty()) accelerator->save_state(save);
        return flat(all);
      };
      const auto folder = ranks.folder().file("checkpoint");
      run(2, "", folder);
      EXPECT_TRUE(torch::equal(run(3, folder, ""), run(5, "", "")));
      const auto file = load_safetensors(folder + "/optimizer.safetensors");
      EXPECT_TRUE(file.tensors.contains("model.weight.exp_avg"));
      EXPECT_TRUE(file.tensors.contains("model_1.a.bias.exp_avg"));
    });
  }
}

// Of two networks in one loss or with a loss each, the second is not prepared; nor, with `plain`,
// its optimizer.
void train_unprepared(Accelerators& ranks, bool in_one_loss, bool plain, bool is_stepped = true) {
  const auto accelerator = ranks.make();
  torch::manual_seed(3);
  torch::nn::Linear one(3, 3);
  torch::nn::Linear two(3, 3);
  torch::optim::SGD own(two->parameters(), 0.1);
  auto [net, sgd] = accelerator->prepare(one, torch::optim::SGD(one->parameters(), 0.1));
  const auto prepared = plain ? nullptr : accelerator->prepare(own);
  for (int step = 0; step < 3; ++step) {
    const auto x = torch::ones({1, 3}) * (1 + accelerator->process_index());
    const auto loss_of_one = net->forward(x).sum();
    if (!in_one_loss) accelerator->backward(loss_of_one);
    accelerator->backward(two(in_one_loss ? net->forward(x) : x).sum());
    if (in_one_loss) sgd->step();
    if (is_stepped) plain ? own.step() : prepared->step();
    if (is_stepped) own.zero_grad();
    sgd->zero_grad();
  }
}

TEST(Prepare, RefusesToTrainANetworkThatIsNotPrepared) {
  run_accelerators(2, [](Accelerators& ranks) {
    for (const bool in_one_loss : {true, false}) {
      for (const bool plain : {true, false}) {
        EXPECT_ERROR(train_unprepared(ranks, in_one_loss, plain), UsageError,
                     "no wrapper averages the gradient of a tensor, Float [3, 3]",
                     "or prepare its network");
      }
      EXPECT_NO_THROW(train_unprepared(ranks, in_one_loss, /*plain=*/true, /*is_stepped=*/false));
    }
  });
  run_accelerators(1, [](Accelerators& ranks) {
    EXPECT_NO_THROW(train_unprepared(ranks, /*in_one_loss=*/true, /*plain=*/false));
  });
}

// Other weights on each process become those of the first.
TEST(Prepare, TakesATeacherThatIsFrozen) {
  run_accelerators(2, [](Accelerators& ranks) {
    const auto accelerator = ranks.make();
    torch::manual_seed(accelerator->is_main_process() ? 3 : 4);
    torch::nn::Linear module(3, 2);
    auto teacher = std::make_shared<TwoLayers>();
    for (auto& parameter : teacher->parameters()) {
      const torch::NoGradGuard no_grad;
      parameter.set_requires_grad(false).add_(accelerator->process_index());
    }
    for (auto& parameter : module->parameters()) parameter.set_requires_grad(false);
    auto [a, b] = accelerator->prepare(module, teacher);
    const auto student = accelerator->prepare(std::make_shared<TwoLayers>());
    for (int step = 0; step < 2; ++step) {
      const auto target = b->forward(torch::ones({2, 2}));
      accelerator->backward((student->forward(torch::ones({2, 2})) - target).square().mean());
    }
    const auto weights = torch::cat({flat_weights(*a), flat_weights(*b)});
    EXPECT_TRUE(torch::equal(weights, accelerator->broadcast(weights)));
  });
}

// Two networks; the loss of the second step passes through the first.
RanksEnd end_of_gan(bool freeze) {
  return end_of_accelerators(1, [freeze](Accelerators& ranks) {
    const auto accelerator = ranks.make();
    torch::nn::Linear g(3, 3);
    torch::nn::Linear d(3, 1);
    auto [optimizer_g, optimizer_d] = accelerator->prepare(torch::optim::SGD(g->parameters(), 0.1),
                                                           torch::optim::SGD(d->parameters(), 0.1));
    for (int step = 0; step < 3; ++step) {
      const auto fake = g->forward(torch::ones({2, 3}));
      accelerator->backward(d->forward(fake.detach()).mean());
      optimizer_d->step();
      optimizer_d->zero_grad();
      std::optional<FreezeGuard> frozen;
      if (freeze) frozen.emplace(*d);
      accelerator->backward(-d->forward(fake).mean());
      optimizer_g->step();
      optimizer_g->zero_grad();
    }
  });
}

TEST(Prepare, WarnsOnceOfGradientsThatAnotherLossLeft) {
  const auto frozen = end_of_gan(true);
  expect_well(frozen);
  EXPECT_EQ(frozen.messages, "");
  const auto leaking = end_of_gan(false);
  expect_well(leaking);
  const auto found = leaking.messages.find("a step used gradients of a backward");
  EXPECT_NE(found, std::string::npos);
  EXPECT_EQ(leaking.messages.find("a step used gradients", found + 1), std::string::npos);
}

// The program made the network again after its optimizer.
TEST(Prepare, WarnsOnceOfAnOptimizerOfAnotherNetwork) {
  const auto end = end_of_accelerators(2, [](Accelerators& ranks) {
    const auto accelerator = ranks.make();
    torch::optim::SGD sgd(torch::nn::Linear(3, 3)->parameters(), 0.1);
    auto [net, optimizer] = accelerator->prepare(torch::nn::Linear(3, 3), sgd);
    for (int step = 0; step < 3; ++step) {
      accelerator->backward(net->forward(torch::ones({2, 3})).sum());
      optimizer->step();
    }
  });
  expect_well(end);
  const auto text = "AcceleratedOptimizer::step: no parameter has a gradient in the first step";
  const auto found = end.messages.find(text);
  EXPECT_NE(found, std::string::npos) << end.messages;
  EXPECT_EQ(end.messages.find(text, found + 1), std::string::npos);
}

// --- Modules ---

// Each process has its own statistics of the same layer after its forward.
TEST(Prepare, SendsTheBuffersOfANetworkThatIsFrozenInABackward) {
  run_accelerators(2, [](Accelerators& ranks) {
    const auto accelerator = ranks.make();
    torch::nn::Linear g(3, 3);
    torch::nn::Sequential d(torch::nn::BatchNorm1d(3), torch::nn::Linear(3, 1));
    accelerator->prepare(g, d);
    const FreezeGuard frozen(*d);
    const auto noise = torch::arange(6.0).reshape({2, 3}) * (1 + accelerator->process_index());
    accelerator->backward(d->forward(g->forward(noise)).sum());
    const auto mean = d->buffers().front();
    EXPECT_NE(mean.abs().sum().item<float>(), 0.0F);
    EXPECT_TRUE(torch::equal(mean, accelerator->broadcast(mean)));
  });
}

TEST(Prepare, RunsAnyModuleInMixedPrecisionWithinAccumulate) {
  run_accelerators(1, [](Accelerators& ranks) {
    const auto accelerator = ranks.make({.mixed_precision = Precision::kBf16});
    torch::nn::Linear net(3, 2);
    const auto model = accelerator->prepare(net);
    EXPECT_EQ(model.get(), net.get());
    const auto x = torch::ones({2, 3});
    EXPECT_ERROR(accelerator->backward(net->forward(x).sum()), UsageError,
                 "no accelerator.accumulate(model) for this batch, and mixed precision");
    const auto accumulation = accelerator->accumulate(*net);
    const auto output = net->forward(x);
    EXPECT_EQ(output.scalar_type(), torch::kBFloat16);
    accelerator->backward(output.sum());
    EXPECT_EQ(net->weight.grad().scalar_type(), torch::kFloat32);
  });
}

// Of its two layers, rank r uses layer r.
TEST(Prepare, AveragesParametersThatOneProcessDoesNotUseIfTold) {
  run_accelerators(2, [](Accelerators& ranks) {
    const auto accelerator = ranks.make({}, {.ddp = {.find_unused_parameters = true}});
    torch::nn::Sequential net(torch::nn::Linear(3, 2), torch::nn::Linear(3, 2));
    const auto model = accelerator->prepare(net);
    auto& own =
        *net[static_cast<std::size_t>(accelerator->process_index())]->as<torch::nn::Linear>();
    for (int step = 0; step < 2; ++step) {
      net->zero_grad();
      accelerator->backward(own.forward(torch::ones({1, 3})).sum());
      for (const auto& parameter : net->parameters()) {
        EXPECT_TRUE(torch::equal(parameter.grad(), torch::full_like(parameter, 0.5)));
      }
    }
  });
}

TEST(Accelerator, ComparesWhatDecidesItsCollectives) {
  run_accelerators(2, [](Accelerators& ranks) {
    const bool is_second = ranks.make()->process_index() == 1;
    EXPECT_ERROR(ranks.make({.gradient_accumulation = {.sync_each_batch = is_second}}),
                 DistributedError, "sync_each_batch ");
    EXPECT_ERROR(ranks.make({.zero_redundancy = is_second}), DistributedError, "zero_redundancy ");
  });
}

TEST(Accelerator, TrainsOnWhereTheCurvesCannotBeWritten) {
  run_accelerators(1, [](Accelerators& ranks) {
    const auto runs = ranks.folder().file("runs");
    const auto accelerator = ranks.make({.project = {.logging_dir = runs}, .log_with = {"csv"}});
    accelerator->init_trackers("one");
    rlimit before{};
    getrlimit(RLIMIT_FSIZE, &before);
    const rlimit full{.rlim_cur = 1, .rlim_max = before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &full);
    for (const int step : {1, 2}) accelerator->log({{"loss", 1.0}}, step);
    setrlimit(RLIMIT_FSIZE, &before);
    accelerator->log({{"loss", 1.0}}, 3);
    accelerator->end_training();
    EXPECT_EQ(std::filesystem::file_size(runs + "/one/metrics.csv"), 16U) << "the header alone";
  });
}

// --- Batches ---

// The weights after one pass. Each process trains the batches that `numbers` gives it.
torch::Tensor after_pass(Accelerators& ranks, int num_steps,
                         const std::function<std::vector<int>(int rank)>& numbers, bool joins) {
  const auto accelerator = ranks.make({.gradient_accumulation = {.num_steps = num_steps}});
  torch::manual_seed(3);
  torch::nn::Linear net(3, 2);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator->prepare(net, sgd);
  std::list<torch::Tensor> batches;
  for (const int number : numbers(accelerator->process_index())) {
    batches.push_back(torch::full({2, 3}, number * 0.25));
  }
  const auto train = [&](auto&& loader) {
    for (const torch::Tensor& x : loader) {
      const auto accumulation = accelerator->accumulate(*net);
      optimizer->zero_grad();
      accelerator->backward(square_loss(net, x));
      optimizer->step();
    }
  };
  joins ? train(accelerator->join(batches))
        : train(accelerator->prepare(accelerator->prepare(batches)));  // again changes nothing
  return flat_weights(*net);
}

// The mean over the processes that still have a batch, in one process.
torch::Tensor expected_after(const std::vector<std::vector<int>>& rounds) {
  torch::manual_seed(3);
  torch::nn::Linear net(3, 2);
  for (const auto& round : rounds) {
    net->zero_grad();
    for (const int number : round) {
      (square_loss(net, torch::full({2, 3}, number * 0.25)) / static_cast<double>(round.size()))
          .backward();
    }
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) parameter.sub_(parameter.grad() * 0.1);
  }
  return flat_weights(*net);
}

TEST(JoinedBatches, TrainTheRestWhereAProcessEndsEarly) {
  run_accelerators(2, [](Accelerators& ranks) {
    const auto own = [](int rank) {
      return rank == 0 ? std::vector{0, 2} : std::vector{1, 3, 4, 5};
    };
    const auto expected = expected_after({{0, 1}, {2, 3}, {4}, {5}});
    EXPECT_LE(relative_difference(after_pass(ranks, 1, own, /*joins=*/true), expected), 1e-6);
    const auto all = [](int /*rank*/) { return std::vector{0, 1, 2, 3, 4}; };
    const auto dealt = expected_after({{0, 1}, {2, 3}, {4}});
    EXPECT_LE(relative_difference(after_pass(ranks, 1, all, /*joins=*/false), dealt), 1e-6);
    const auto one = [](int rank) { return std::vector<int>(static_cast<std::size_t>(rank), 1); };
    EXPECT_ERROR(after_pass(ranks, 1, one, /*joins=*/true), UsageError,
                 "expected a first batch on each of 2 processes, got 1");
  });
}

TEST(JoinedBatches, EndAnAccumulationWindowWithThePass) {
  run_accelerators(1, [](Accelerators& ranks) {
    const auto expected = expected_after({{1, 1}});
    const auto difference = [&](const std::vector<int>& batches) {
      const auto found = after_pass(ranks, 2, [&](int /*rank*/) { return batches; }, false);
      return relative_difference(found, expected);
    };
    EXPECT_LE(difference({1, 1}), 1e-6);
    EXPECT_GT(difference({1, 1, 2}), 1e-3);
  });
}

// As a pass over a loader does. An evaluation between two batches of a window changes nothing.
TEST(JoinedBatches, DropAWindowThatTheirPassDidNotEnd) {
  run_accelerators(1, [](Accelerators& ranks) {
    const auto weight_after = [&](int batches_before, bool evaluates) {
      const auto accelerator = ranks.make({.gradient_accumulation = {.num_steps = 2}});
      auto weight = torch::zeros({1}, torch::requires_grad());
      torch::optim::SGD sgd({weight}, 0.5);
      const auto optimizer = accelerator->prepare(sgd);
      std::list<torch::Tensor> batches = {torch::ones({1}), torch::full({1}, 2.0)};
      for (const int count : {batches_before, 2}) {
        int left = count;
        for (const torch::Tensor& x : accelerator->join(batches)) {
          if (left-- == 0) break;
          if (evaluates) {
            for (const torch::Tensor& other : accelerator->join(batches)) std::ignore = other;
          }
          const auto accumulation = accelerator->accumulate();
          accelerator->backward((weight * x).sum());
          optimizer->step();
          optimizer->zero_grad();
        }
      }
      return weight.item<float>();
    };
    for (const int batches_before : {0, 1}) {
      for (const bool evaluates : {false, true}) {
        EXPECT_EQ(weight_after(batches_before, evaluates), -0.75F) << batches_before << evaluates;
      }
    }
  });
}

// A mean over rows of 4, 10 and 1 sample, in the rounds of two processes.
TEST(JoinedBatches, CountTheItemsOfTheirLastRound) {
  run_accelerators(2, [](Accelerators& ranks) {
    const auto accelerator = ranks.make();
    torch::nn::Linear net(1, 1);
    accelerator->prepare(net);
    std::list<torch::Tensor> batches = {torch::ones({4, 1}), torch::ones({10, 1}),
                                        torch::ones({1, 1})};
    std::vector<std::int64_t> counts;
    for (const torch::Tensor& rows : accelerator->prepare(batches)) {
      const auto accumulation = accelerator->accumulate(*net);
      const auto items = accelerator->num_items(rows.size(0));
      counts.push_back(items.global);
      net->zero_grad();
      accelerator->backward(items.mean(net->forward(rows).sum()));
      EXPECT_FLOAT_EQ(net->bias.grad().item<float>(), 1.0F);
    }
    EXPECT_EQ(counts, (std::vector<std::int64_t>{14, 1}));
    EXPECT_EQ(accelerator->num_items(0).global, 1) << "nothing to divide";
  });
}

struct Graph {
  torch::Tensor nodes;
  std::vector<std::pair<int, std::string>> edges;
  std::optional<double> label;
};
struct Labelled : Graph {
  int id = 0;
};
class Opaque {
 public:
  explicit Opaque(torch::Tensor tensor) : tensor_(std::move(tensor)) {}
  std::vector<torch::Tensor> tensors() const { return {tensor_}; }

 private:
  torch::Tensor tensor_;
};

// As those of a loader of torch::data that shuffles by generators in different states.
TEST(JoinedBatches, RefuseOtherBatchesOnEachProcess) {
  run_accelerators(2, [](Accelerators& ranks) {
    const auto accelerator = ranks.make();
    const int rank = accelerator->process_index();
    const auto refuses = [&](auto first) {
      std::vector own = {first};
      EXPECT_ERROR(static_cast<void>(accelerator->prepare(own).begin()), UsageError,
                   "the processes read other first batches; hint: before each pass");
      static_cast<void>(accelerator->join(own).begin());
    };
    const auto other = torch::full({1}, rank);
    const auto same = torch::ones({1});
    struct Numbered {
      torch::Tensor x;
      int id;
    };
    refuses(other);
    refuses(Numbered{other, 0});
    refuses(Numbered{same, rank});
    refuses(Graph{same, {{1, rank == 0 ? "a" : "b"}}, {}});
    refuses(Graph{same, {}, rank + 0.5});
    refuses(std::tuple{same, std::make_shared<int>(rank)});
    refuses(std::array{same, other});
    refuses(Batch{.inputs = same, .targets = other});
    refuses(Opaque(other));
    refuses(torch::data::Example<>(same, other));
    std::vector equal(2, Labelled{Graph{same, {{1, "a"}}, 0.5}, 0});
    EXPECT_NO_THROW(static_cast<void>(accelerator->prepare(equal).begin()));
  });
}

TEST(JoinedBatches, MayBeginAgainInOneIterator) {
  run_accelerators(1, [](Accelerators& ranks) {
    const auto accelerator = ranks.make({.gradient_accumulation = {.num_steps = 2}});
    std::list<torch::Tensor> batches = {torch::ones({1}), torch::ones({1})};
    auto loader = accelerator->join(batches);
    std::vector<bool> ends;
    for (auto it = loader.begin(); ends.size() < 6;) {
      std::ignore = accelerator->accumulate();
      ends.push_back(accelerator->sync_gradients());
      if (++it == loader.end()) it = loader.begin();
    }
    EXPECT_EQ(ends, (std::vector{false, true, false, true, false, true}));
  });
}

TEST(JoinedBatches, TakeALoaderOfTorchData) {
  run_accelerators(2, [](Accelerators& ranks) {
    const auto accelerator = ranks.make();
    auto data = torch::data::datasets::TensorDataset(torch::arange(10))
                    .map(torch::data::transforms::Stack<torch::data::TensorExample>());
    auto loader = accelerator->prepare(
        torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(std::move(data),
                                                                                2));
    std::vector<std::int64_t> seen;
    std::vector<torch::Tensor> gathered;
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (const auto& batch : loader) {
        seen.push_back(batch.data[0].item<std::int64_t>());
        gathered.push_back(accelerator->gather_for_metrics(batch.data));
        EXPECT_ERROR(accelerator->gather_for_metrics(batch.data.sum()), UsageError,
                     "expected rows, one per sample, got 'a scalar'");
      }
    }
    const std::vector<std::int64_t> of_rank[] = {{0, 4, 8, 0, 4, 8}, {2, 6, 6, 2, 6, 6}};
    EXPECT_EQ(seen, of_rank[accelerator->process_index()]);
    EXPECT_TRUE(torch::equal(torch::cat(gathered), torch::arange(20).remainder(10)));
  });
}

TEST(SampleNoise, IsNormalAndBelongsToTheSample) {
  run_alone([] {
    const auto noise = [](const torch::Tensor& positions, std::int64_t epoch, unsigned stream) {
      const RandomScope random({7, epoch, positions});
      return sample_noise({3, 5}, stream);
    };
    const auto all = noise(torch::arange(4'000), 0, 0);
    EXPECT_TRUE(torch::equal(noise(torch::tensor({17, 3}), 0, 0),
                             all.index_select(0, torch::tensor({17, 3}))));
    EXPECT_FALSE(torch::equal(noise(torch::arange(4'000), 1, 0), all));
    EXPECT_FALSE(torch::equal(noise(torch::arange(4'000), 0, 1), all));
    EXPECT_NEAR(all.mean().item<double>(), 0.0, 0.02);
    EXPECT_NEAR(all.std().item<double>(), 1.0, 0.02);
    EXPECT_NEAR(all.pow(4).mean().item<double>(), 3.0, 0.15);
    EXPECT_ERROR(sample_noise({2}), UsageError, "a RandomScope around the forward");
  });
}

}  // namespace
}  // namespace ladder
