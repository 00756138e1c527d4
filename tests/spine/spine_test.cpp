// SPDX-License-Identifier: Apache-2.0
// The spine without a shelf: this program links ladder::spine, and mnist/networks.cpp.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adam.h>
#include <torch/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <vector>

#include "ladder/checkpoint/checkpoint_parts.h"
#include "ladder/checkpoint/checkpoint_store.h"
#include "ladder/checkpoint/stateful_optimizer.h"
#include "ladder/checkpoint/training_state.h"
#include "ladder/comm/init_process_group.h"
#include "ladder/core/error.h"
#include "ladder/core/log.h"
#include "ladder/launch/launch_environment.h"
#include "ladder/monitor/training_monitor.h"
#include "ladder/nn/model.h"
#include "ladder/nn/ops.h"
#include "ladder/nn/random_scope.h"
#include "ladder/nn/state_dict.h"
#include "ladder/optim/sgd.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "ladder/parallel/replica_check.h"
#include "ladder/parallel/replicate.h"
#include "mnist/networks.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

constexpr std::int64_t kBatch = 8;

std::shared_ptr<Model> basic_net(const ProcessGroup& group) {
  torch::manual_seed(1);
  return std::make_shared<DistributedDataParallel>(mnist::make_basic_net(), group);
}

// This rank's part of the batch of step `step`.
void train_step(Model& model, torch::optim::Optimizer& optimizer, const ProcessGroup& group,
                std::int64_t step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(step));
  const auto part = kBatch / group.world_size();
  const auto images = torch::randn({kBatch, 1, 28, 28}, generator);
  const auto own = [&](const torch::Tensor& all) {
    return all.narrow(0, group.rank() * part, part);
  };
  const auto positions = torch::arange(kBatch, torch::kInt64);
  const RandomScope random({.seed = 1, .epoch = step, .positions = own(positions)});
  const auto loss = torch::nn::functional::nll_loss(model.forward(own(images)), own(positions));
  loss.backward();
  optimizer.step();
  optimizer.zero_grad();
}

std::vector<torch::Tensor> trained(const ProcessGroup& group) {
  const auto model = basic_net(group);
  SGD optimizer(model->parameters(), {.lr = 0.05, .momentum = 0.9});
  model->train();
  for (std::int64_t step = 0; step < 3; ++step) train_step(*model, optimizer, group, step);
  require_equal_replicas(*model, group);
  return model->parameters();
}

TEST(Spine, HasTheEntriesOfNoShelf) {
  EXPECT_ERROR(init_process_group({.backend = "shm"}), UsageError, "one of auto, gloo, nccl, got");
  run_ranks(1, [](const ProcessGroup& group) {
    EXPECT_TRUE(typeid(checkpoint_store()) == typeid(CheckpointStore));
    EXPECT_TRUE(
        dynamic_cast<DistributedDataParallel*>(replicate(mnist::make_basic_net(), group).get()));
    EXPECT_ERROR(replicate(mnist::make_basic_net(), group, {.sums = "exact"}), UsageError,
                 "sums: expected one of fast, got 'exact'; hint: link ladder::exact");
    EXPECT_EQ(ops().linear, plain::linear);
    EXPECT_EQ(ops().counter_mask, counter_mask_by_tensors);
    StepObservers observers;
    const auto network = mnist::make_basic_net();
    usual_observers(observers, {}, {.group = group}, *network);
    EXPECT_ERROR(usual_observers(observers, {.fingerprint = 1}, {.group = group}, *network),
                 UsageError, "hint: link ladder::observe");
    torch::optim::Adam adam({torch::zeros({1}).requires_grad_()});
    EXPECT_ERROR(stateful(adam), UsageError, "hint: use ladder::AdamW or ladder::SGD, or link");
  });
}

TEST(Spine, RefusesATaskOfALauncherThatItDoesNotRead) {
  const auto read = [](std::map<std::string, std::string> set) {
    return read_launch_environment({}, [=](const auto& name) {
      const auto found = set.find(name);
      return found == set.end() ? std::nullopt : std::optional(found->second);
    });
  };
  EXPECT_ERROR(read({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}}), UsageError,
               "OMPI_COMM_WORLD_RANK: set by mpirun, whose variables this program does not read");
  const std::map<std::string, std::string> shell = {{"SLURM_PROCID", "0"},
                                                    {"SLURM_STEP_NUM_TASKS", "2"}};
  EXPECT_EQ(read(shell).launcher, "single");
  auto step = shell;
  step["SLURM_STEP_ID"] = "1";
  EXPECT_ERROR(read(step), UsageError, "hint: link ladder::launchers, or set RANK");
}

TEST(Spine, TwoRanksTrainBasicNetToTheWeightsOfOne) {
  run_ranks(2, [](const ProcessGroup& group) {
    const auto two = trained(group);
    const auto one = trained(ProcessGroup::single());
    for (std::size_t i = 0; i < one.size(); ++i) {
      // Two sums of four samples against one of eight, in float32.
      EXPECT_LT((one[i] - two[i]).abs().max().item<double>(), 1e-6) << i;
    }
  });
}

TEST(Spine, ARunGoesOnFromItsParts) {
  const TemporaryFolder folder;
  run_ranks(2, [&](const ProcessGroup& group) {
    const auto run = [&](std::int64_t first, std::int64_t last) {
      const auto model = basic_net(group);
      SGD optimizer(model->parameters(), {.lr = 0.05, .momentum = 0.9});
      const CheckpointParts parts = {model_part("model.safetensors", *model),
                                     optimizer_part("optimizer.safetensors", optimizer, model)};
      const auto path = folder.file("run");
      if (first > 0) load_parts(path, parts, group, Log({.rank = group.rank(), .quiet = true}));
      model->train();
      for (auto step = first; step < last; ++step) train_step(*model, optimizer, group, step);
      save_parts(path, parts, group);
      return weights_sha256(state_dict(*model));
    };
    const auto whole = run(0, 4);
    run(0, 2);
    EXPECT_EQ(run(2, 4), whole);
  });
}

}  // namespace
}  // namespace ladder
