// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/accelerator.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "ladder/checkpoint/safetensors.h"
#include "ladder/core/error.h"
#include "ladder/data/dataset.h"
#include "ladder/data/distributed_sampler.h"
#include "ladder/nn/model.h"
#include "ladder/nn/state_dict.h"
#include "ladder/optim/adam.h"
#include "ladder/optim/lr_scheduler.h"
#include "ladder/optim/schedules.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "mnist/networks.h"
#include "tests/support/accelerators.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"

namespace ladder {
namespace {

using Numbers = std::vector<std::int64_t>;
using ModelPointer = std::shared_ptr<Model>;
using OptimizerPointer = std::shared_ptr<AcceleratedOptimizer>;
using SchedulerPointer = std::shared_ptr<AcceleratedScheduler>;

class OfRanks : public testing::TestWithParam<int> {
 protected:
  static int world() { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(World, OfRanks, testing::Values(1, 2));

// --- prepare ---

// Counts how often it was moved.
class MovedNet : public Model {
 public:
  MovedNet() : layer_(register_module("layer", torch::nn::Linear(2, 2))) {}

  torch::Tensor forward(const Inputs& inputs) override { return layer_->forward(inputs.only()); }
  std::shared_ptr<Model> new_like() const override { return std::make_shared<MovedNet>(); }
  using Model::to;
  void to(torch::Device device, bool non_blocking) override {
    ++moves;
    Model::to(device, non_blocking);
  }
  int moves = 0;

 private:
  torch::nn::Linear layer_;
};

// Handed over as programs have them: derived classes, unique and shared pointers.
TEST_P(OfRanks, PrepareKeepsOrderAndNumber) {
  run_accelerators(world(), [](Accelerators& ranks) {
    const auto accelerator = ranks.make();
    const auto network = std::make_shared<MovedNet>();
    auto adamw = std::make_unique<AdamW>(network->parameters());
    auto schedule = constant_schedule(*adamw);
    auto [scheduler, loader, optimizer, model] = accelerator->prepare(
        std::move(schedule), numbered_loader(4, {}), std::move(adamw), network);
    static_assert(std::is_same_v<decltype(scheduler), SchedulerPointer>);
    static_assert(std::is_same_v<decltype(loader), AcceleratedDataLoader>);
    static_assert(std::is_same_v<decltype(optimizer), OptimizerPointer>);
    static_assert(std::is_same_v<decltype(model), ModelPointer>);
    EXPECT_EQ(&scheduler->scheduler().optimizer(), &optimizer->optimizer());

    auto [second, third] = accelerator->prepare(numbered_loader(2, {}), numbered_loader(3, {}));
    EXPECT_EQ(second.dataset().size(), 2);
    EXPECT_EQ(third.dataset().size(), 3);
    const AcceleratedDataLoader one = accelerator->prepare(numbered_loader(4, {}));
    EXPECT_EQ(one.size(), 1) << "of one object, not a tuple of one";
  });
}

// Prepared objects, and the ones that they were made from.
TEST_P(OfRanks, PrepareTwiceGivesTheSameObjects) {
  run_accelerators(world(), [](Accelerators& ranks) {
    const auto accelerator = ranks.make();
    const auto network = small_net();
    const auto sgd = plain_sgd(*network);
    const std::shared_ptr<LrScheduler> schedule = constant_schedule(*sgd);
    const auto [model, optimizer, scheduler] = accelerator->prepare(network, sgd, schedule);
    const auto same = std::tuple{model, optimizer, scheduler};
    EXPECT_TRUE(accelerator->prepare(model, optimizer, scheduler) == same);
    EXPECT_TRUE(accelerator->prepare(network, sgd, schedule) == same);
    auto loader = accelerator->prepare(numbered_loader(6, {.batch_size = 2}));
    loader.set_epoch(3);
    EXPECT_EQ(accelerator->prepare(loader).epoch(), 3) << "a copy with the same position";
  });
}

TEST_P(OfRanks, TrainsWithGradientsInBuckets) {
  run_accelerators(world(), [](Accelerators& ranks) {
    std::vector<torch::Tensor> weights;
    for (const bool as_view : {false, true}) {
      const auto accelerator = ranks.make({}, {.ddp = {.gradient_as_bucket_view = as_view}});
      const auto network = small_net();
      const auto [model, optimizer] = accelerator->prepare(network, plain_sgd(*network));
      for (int step = 0; step < 3; ++step) {
        run_backward(*accelerator, *model, basicnet(), random_batch(2));
        optimizer->step();
        optimizer->zero_grad();
      }
      weights.push_back(flat_weights(*network));
    }
    EXPECT_TRUE(torch::equal(weights[0], weights[1]));
  });
}

// Bits of DistributedDataParallel, and a file of the plain network; a checkpoint is resumed.
TEST_P(OfRanks, TrainsTheSameFullySharded) {
  run_accelerators(world(), [](Accelerators& ranks) {
    std::vector<std::string> hashes;
    for (const bool sharded : {false, true}) {
      const auto accelerator = ranks.make(
          {.fully_sharded = sharded ? std::optional(FullyShardedOptions()) : std::nullopt});
      const auto network = first_model(basicnet());
      const auto [model, optimizer] =
          accelerator->prepare(network, std::make_unique<AdamW>(network->parameters()));
      const auto checkpoint = ranks.folder().file("checkpoint");
      for (int step = 0; step < 3; ++step) {
        if (step == 2 && sharded) accelerator->save_state(checkpoint);
        for (const bool again : {false, true}) {  // the last step twice, from the checkpoint
          if (again && !(step == 2 && sharded)) continue;
          if (again) accelerator->load_state(checkpoint);
          run_backward(*accelerator, *model, basicnet(), random_batch(2));
          accelerator->clip_grad_norm_(model->parameters(), 1e6);  // changes nothing
          optimizer->step();
          optimizer->zero_grad();
        }
      }
      const auto path = ranks.folder().file("model.safetensors");
      accelerator->save_model(*model, path);
      hashes.push_back(weights_sha256(load_safetensors(path).tensors));
    }
    EXPECT_EQ(hashes[1], hashes[0]);
    EXPECT_ERROR(ranks.make({.zero_redundancy = true, .fully_sharded = FullyShardedOptions()}),
                 UsageError, "fully_sharded: zero_redundancy divides states already");
  });
}

TEST_P(OfRanks, UnwrapFindsTheNetworkAndSaveModelLeavesTheWrappersOut) {
  run_accelerators(world(), [](Accelerators& ranks) {
    MovedNet with_a_child;
    with_a_child.register_module("module", small_net());
    EXPECT_EQ(&Accelerator::unwrap_model(with_a_child), &with_a_child);
    for (const auto precision : {Precision::kFp32, Precision::kBf16}) {
      const auto accelerator = ranks.make({.mixed_precision = precision});
      const auto network = small_net();
      const auto model = accelerator->prepare(network);
      EXPECT_EQ(&Accelerator::unwrap_model(*model), network.get());
      EXPECT_EQ(&Accelerator::unwrap_model(*network), network.get());
      const bool is_ddp = ranks.world_size() > 1;
      EXPECT_EQ(model != network, is_ddp || precision != Precision::kFp32);
      EXPECT_EQ(dynamic_cast<DistributedDataParallel*>(model.get()) != nullptr, is_ddp);
      const auto path = ranks.folder().file("model.safetensors");
      accelerator->save_model(*model, path);
      const auto saved = load_safetensors(path).tensors;
      EXPECT_EQ(weights_sha256(saved), weights_sha256(state_dict(*network)));
      EXPECT_TRUE(saved.contains("linear.weight"));
    }
  });
}

TEST(Prepare, MovesNothingWithoutDevicePlacement) {
  run_accelerators(1, [](Accelerators& ranks) {
    for (const bool placement : {false, true}) {
      const auto accelerator = ranks.make({.device_placement = placement});
      const auto network = std::make_shared<MovedNet>();
      accelerator->prepare(network);
      EXPECT_EQ(network->moves, placement ? 1 : 0);
    }
  });
}

TEST(Prepare, RefusesALoaderThatIsOneRanksPart) {
  run_accelerators(2, [](Accelerators& ranks) {
    const auto accelerator = ranks.make();
    const auto part = std::make_shared<DistributedSampler>(
        8, DistributedSamplerOptions{.world_size = 2, .rank = accelerator->process_index()});
    EXPECT_THROW(accelerator->prepare(numbered_loader(8, {.sampler = part})), UsageError);
    const auto split = ranks.make({.data_loader = {.mode = LoaderMode::kSplitBatches}});
    EXPECT_ERROR(split->prepare(numbered_loader(8, {.batch_size = 3})), UsageError,
                 "split_batches cannot cut 3 samples into 2 equal parts");
  });
}

struct RandomData : Dataset {
  std::int64_t size() const override { return 4; }
  Batch get_batch(std::span<const std::int64_t> indices) const override {
    return {.inputs = torch::randn({std::ssize(indices), 2})};
  }
};

// Each process reads its own file, or shuffles by a generator of its own.
TEST(Prepare, RefusesALoaderOfOtherDataOrOrderOnEachProcess) {
  run_accelerators(2, [](Accelerators& ranks) {
    const auto accelerator = ranks.make();
    const int rank = accelerator->process_index();
    const auto prepare = [&](const torch::Tensor& samples, DataLoaderOptions options = {}) {
      accelerator->prepare(DataLoader(std::make_shared<TensorDataset>(samples), options));
    };
    const auto refuses = [&](const std::string& got, const torch::Tensor& samples,
                             const DataLoaderOptions& options = {}) {
      EXPECT_ERROR(prepare(samples, options), DistributedError,
                   "prepared loader: expected one data set and one order on all processes: 4 "
                   "samples, order ",
                   got);
    };
    const auto same = torch::arange(4);
    refuses(", got 5 samples, order ", torch::arange(4 + rank));
    refuses(", sample 0 ", same + rank);
    refuses(", got 4 samples, order ", same,
            {.shuffle = true, .seed = static_cast<std::uint64_t>(rank)});
    EXPECT_NO_THROW(prepare(same, {.shuffle = true}));
    // A data set may be random, and its reads here draw nothing from the run's generator.
    torch::manual_seed(static_cast<std::uint64_t>(rank));
    const auto before = torch::randn({1});
    torch::manual_seed(static_cast<std::uint64_t>(rank));
    EXPECT_NO_THROW(accelerator->prepare(DataLoader(std::make_shared<RandomData>())));
    EXPECT_TRUE(torch::equal(torch::randn({1}), before));
  });
}

// accelerate/accelerator.py, Accelerator.autocast: "Will apply automatic mixed-precision inside the
// block inside this context manager, if it is enabled. Nothing different will happen otherwise."
TEST(Precision, IsThatOfTheAcceleratorInAModelAndInsideAutocast) {
  run_accelerators(1, [](Accelerators& ranks) {
    const auto a = torch::ones({2, 2});
    const auto batch = random_batch(2);
    std::vector<torch::Tensor> outputs;
    for (const auto& [precision, dtype] : {std::pair{Precision::kFp32, torch::kFloat32},
                                           std::pair{Precision::kBf16, torch::kBFloat16},
                                           std::pair{Precision::kFp16, torch::kFloat16}}) {
      const auto accelerator = ranks.make({.mixed_precision = precision});
      EXPECT_EQ(accelerator->scaler().is_enabled(), dtype == torch::kFloat16);
      const auto model = accelerator->prepare(small_net());
      model->eval();
      outputs.push_back(model->forward(batch.inputs));
      EXPECT_EQ(outputs.back().scalar_type(), torch::kFloat32);
      {
        const auto autocast = accelerator->autocast();
        EXPECT_EQ(torch::mm(a, a).scalar_type(), dtype);
      }
      EXPECT_EQ(torch::mm(a, a).scalar_type(), torch::kFloat32);
    }
    for (const std::size_t reduced : {1U, 2U}) {
      const double difference = relative_difference(outputs[reduced], outputs[0]);
      EXPECT_GT(difference, 1e-5);
      EXPECT_LT(difference, 2e-2);
    }
  });
}

// --- debug mode ---

TEST(DebugMode, NamesShapesThatDifferBeforeTheCollective) {
  run_accelerators(2, [](Accelerators& ranks) {
    const auto accelerator = ranks.make({.debug = true});
    const int rank = accelerator->process_index();
    const auto differing = torch::zeros({2, 3 + rank});
    const std::string message = ": expected Float [2, 3], as on rank 0, got Float [2, 4] on rank 1";
    EXPECT_ERROR(accelerator->gather(differing), DistributedError,
                 "gather: expected Float [N, 3], as on rank 0, got Float [N, 4] on rank 1");
    EXPECT_ERROR(accelerator->reduce(differing), DistributedError, "reduce" + message);
    EXPECT_ERROR(accelerator->broadcast(differing), DistributedError, "broadcast" + message);
    // Nothing was sent, so the group still works.
    EXPECT_EQ(accelerator->gather(torch::zeros({2 + rank, 3})).size(0), 5) << "rows may differ";
    EXPECT_EQ(accelerator->gather(torch::zeros({})).size(0), 2);
    EXPECT_EQ(accelerator->reduce(torch::ones({2})).sum().item<float>(), 4.0F);
  });
}

// --- clipping ---

TEST(Clip, WaitsForTheEndOfTheWindow) {
  run_accelerators(1, [](Accelerators& ranks) {
    const auto accelerator = ranks.make({.gradient_accumulation = {.num_steps = 2}});
    const auto model = accelerator->prepare(small_net());
    const auto parameters = model->parameters();
    for (const bool at_end : {false, true}) {
      const auto accumulation = accelerator->accumulate(*model);
      run_backward(*accelerator, *model, basicnet(), random_batch(2));
      const auto before = flat_gradients(*model);
      const auto norm = accelerator->clip_grad_norm_(parameters, 1e-3);
      EXPECT_EQ(norm.defined(), at_end);
      EXPECT_EQ(torch::equal(flat_gradients(*model), before), !at_end);
      if (at_end) {
        EXPECT_NEAR(norm.item<double>(), before.norm().item<double>(), 1e-4);
      }
      accelerator->clip_grad_value_(parameters, 1e-5);
      EXPECT_EQ(flat_gradients(*model).abs().max().item<double>() <= 1.001e-5, at_end);
    }
  });
}

// --- process control ---

TEST(Processes, HaveRanksAndLocalRanks) {
  run_accelerators(3, [](Accelerators& ranks) {
    const auto accelerator = ranks.make();
    const int rank = accelerator->process_index();
    EXPECT_EQ(accelerator->num_processes(), 3);
    EXPECT_EQ(accelerator->local_process_index(), rank);
    EXPECT_EQ(accelerator->is_main_process(), rank == 0);
    EXPECT_EQ(accelerator->is_local_main_process(), rank == 0);
    EXPECT_EQ(accelerator->is_last_process(), rank == 2);
    EXPECT_TRUE(accelerator->use_distributed());
    Numbers ran;
    accelerator->on_main_process([&] { ran.push_back(0); });
    accelerator->on_local_main_process([&] { ran.push_back(0); });
    accelerator->on_process(1, [&] { ran.push_back(1); });
    accelerator->on_last_process([&] { ran.push_back(2); });
    const std::vector<Numbers> expected = {{0, 0}, {1}, {2}};
    EXPECT_EQ(ran, expected[static_cast<std::size_t>(rank)]);
    EXPECT_FALSE(accelerator->check_trigger());
    if (accelerator->is_last_process()) accelerator->set_trigger();
    EXPECT_TRUE(accelerator->check_trigger()) << "which any of them sets";
    EXPECT_FALSE(accelerator->check_trigger());
  });
}

TEST(Processes, RunTheMainOneFirst) {
  run_accelerators(3, [](Accelerators& ranks) {
    const auto accelerator = ranks.make();
    for (const bool local : {false, true}) {
      const auto file = ranks.folder().file(local ? "local" : "download");
      const auto load = [&] {
        if (accelerator->is_main_process()) {
          EXPECT_FALSE(std::filesystem::exists(file));
          std::ofstream(file) << "done";
        }
        EXPECT_TRUE(std::filesystem::exists(file));
      };
      local ? accelerator->local_main_process_first(load) : accelerator->main_process_first(load);
    }
  });
}

TEST(Processes, StopWhenTheMainOneFailsFirst) {
  run_accelerators(3, [](Accelerators& ranks) {
    const auto accelerator = ranks.make();
    const auto model = accelerator->prepare(small_net());
    int calls = 0;
    const auto fail = [&] {
      ++calls;
      throw std::runtime_error("no such file");
    };
    const auto save = [&] {
      accelerator->save_model(*model, ranks.folder().file("nowhere/model.safetensors"));
    };
    if (accelerator->is_main_process()) {
      EXPECT_ERROR(accelerator->main_process_first(fail), std::runtime_error, "no such file");
      EXPECT_EQ(calls, 1);
      EXPECT_THROW(save(), SystemError);
    } else {
      EXPECT_ERROR(accelerator->main_process_first(fail), DistributedError,
                   "rank 0 failed in main_process_first");
      EXPECT_EQ(calls, 0);
      EXPECT_ERROR(save(), DistributedError, "rank 0 failed in save_model");
    }
  });
}

// As accelerate.PartialState.split_between_processes 1.15 divides them.
TEST(Processes, SplitItemsAsPythonDoes) {
  using Letters = std::vector<std::string>;
  struct Case {
    Letters items;
    bool padding;
    std::vector<Letters> expected;
  };
  run_accelerators(3, [](Accelerators& ranks) {
    const auto accelerator = ranks.make();
    for (const Case& each :
         std::vector<Case>{{{"A", "B", "C", "D"}, false, {{"A", "B"}, {"C"}, {"D"}}},
                           {{"A", "B", "C", "D"}, true, {{"A", "B"}, {"C", "D"}, {"D", "D"}}},
                           {{"A", "B", "C"}, true, {{"A"}, {"B"}, {"C"}}},
                           {{"A", "B"}, false, {{"A"}, {"B"}, {}}},
                           {{"A", "B"}, true, {{"A"}, {"B"}, {"B"}}},
                           {{}, true, {{}, {}, {}}}}) {
      EXPECT_EQ(accelerator->split_between_processes(each.items, each.padding),
                each.expected[static_cast<std::size_t>(accelerator->process_index())]);
    }
  });
}

TEST(Processes, PrintOneLine) {
  const TemporaryFolder folder;
  expect_well(end_of_accelerators(2, [&](Accelerators& ranks) {
    const auto accelerator = ranks.make();
    const int file = open(folder.file("out").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ASSERT_EQ(dup2(file, STDOUT_FILENO), STDOUT_FILENO);
    accelerator->print(accelerator->is_main_process() ? "from rank 0" : "from rank 1");
  }));
  EXPECT_EQ(folder.read("out"), "from rank 0\n");
}

TEST(SetSeed, MayDifferByRank) {
  run_accelerators(2, [](Accelerators& ranks) {
    const auto accelerator = ranks.make();
    const auto equal = [&] {
      const auto all = accelerator->gather(torch::rand({1, 4}));
      return torch::equal(all[0], all[1]);
    };
    EXPECT_EQ(set_seed(7), 7U);
    EXPECT_TRUE(equal());
    const auto seed = set_seed(7, /*device_specific=*/true, accelerator->process_group());
    EXPECT_EQ(seed, 7U + static_cast<unsigned>(accelerator->process_index()));
    EXPECT_FALSE(equal());
  });
}

}  // namespace
}  // namespace ladder
