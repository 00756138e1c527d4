// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/snapshot.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "ladder/amp/grad_scaler.h"
#include "ladder/armour/checkpoint_folder.h"
#include "ladder/armour/stop_signal.h"
#include "ladder/checkpoint/random_state.h"
#include "ladder/checkpoint/safetensors.h"
#include "ladder/checkpoint/training_state.h"
#include "ladder/core/error.h"
#include "ladder/data/distributed_sampler.h"
#include "ladder/launch/signals.h"
#include "ladder/nn/random_scope.h"
#include "ladder/nn/state_dict.h"
#include "ladder/observe/observers.h"
#include "ladder/optim/lr_scheduler.h"
#include "ladder/optim/sgd.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "ladder/parallel/fully_sharded_data_parallel.h"
#include "ladder/parallel/pipeline_stage.h"
#include "ladder/parallel/zero_redundancy_optimizer.h"
#include "mnist/networks.h"
#include "tests/support/accelerators.h"
#include "tests/support/exact.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/training.h"

namespace ladder {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kEpochs = 3;
constexpr std::int64_t kSnapshotBatches = 6;  // of an epoch: 5 of 4 samples, and one of 3

struct SnapshotSettings {
  SnapshotOptions snapshot;
  BatchMode mode = BatchMode::kGlobal;
  std::uint64_t seed = 5;
  std::int64_t micro_batch = 0;
  RunSettings settings = {};
};

std::shared_ptr<Model> make_model(const ProcessGroup& group, const SnapshotSettings& run) {
  if (run.micro_batch > 0) return exact(small_net(), group, run.micro_batch);
  return std::make_shared<DistributedDataParallel>(small_net(DropoutMasks::kByGenerator), group);
}

// The loop of stage 3 with a small network.
class Loop {
 public:
  Loop(const ProcessGroup& group, const SnapshotSettings& run,
       const std::function<void(Loop&)>& prepare = {})
      : loader(image_loader(23, 4).shared_dataset(),
               {.batch_sampler = divide_batches(23, {.mode = run.mode,
                                                     .batch_size = 4,
                                                     .seed = run.seed,
                                                     .rank = group.rank(),
                                                     .world_size = group.world_size(),
                                                     .micro_batch = run.micro_batch})}),
        model(make_model(group, run)),
        optimizer(model->parameters(), {.lr = 0.1, .momentum = 0.9}),
        scheduler(optimizer, {.step_size = 1, .gamma = 0.5}),
        snapshot(run.snapshot, group, *model, optimizer, scheduler),
        monitor({.quiet = true, .settings = run.settings}, {.group = group}, *model, loader.size(),
                step_checks) {
    torch::manual_seed(static_cast<std::uint64_t>(group.rank()) + 1);
    if (prepare) prepare(*this);
    snapshot.resume(loader, monitor, Log({.rank = group.rank(), .quiet = true}));
  }

  std::string train_until(std::int64_t end) {
    train(end);
    return fingerprint();
  }

  // Until `end` steps of the whole run are done.
  void train(std::int64_t end) {
    for (std::int64_t epoch = loader.epoch() + 1; epoch <= kEpochs; ++epoch) {
      loader.set_epoch(epoch - 1);
      monitor.begin_epoch(epoch, kEpochs, loader.first_batch());
      model->train();
      for (const Batch& batch : loader) {
        const RandomScope random({1, batch.epoch, batch.positions});
        const auto loss = basicnet().loss(model->forward(batch.inputs), batch);
        loss.backward();
        optimizer.step();
        monitor.step(batch, loss);
        optimizer.zero_grad();
        snapshot.after_step();
        if (monitor.steps() == end) return;
      }
      scheduler.step();
      monitor.end_epoch();
      snapshot.after_epoch();
    }
  }

  std::string fingerprint() const {
    return weights_sha256(state_dict(*model)) +
           weights_sha256(optimizer.state_dict(*model).tensors) + scheduler.state_dict().dump() +
           weights_sha256(random_state(torch::kCPU));
  }

  DataLoader loader;
  std::shared_ptr<Model> model;
  SGD optimizer;
  StepLR scheduler;
  Snapshot snapshot;
  TrainingMonitor monitor;
};

class SnapshotOf : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(World, SnapshotOf, testing::Values(1, 2));

TEST_P(SnapshotOf, ARunResumesItBitForBit) {
  const TemporaryFolder folder;
  run_ranks(GetParam(), [&](const ProcessGroup& group) {
    const auto whole = Loop(group, {}).train_until(-1);
    for (const std::int64_t steps : {0, 1, 4}) {  // 0: after each epoch
      SCOPED_TRACE(steps);
      const SnapshotSettings run{
          .snapshot = {.path = folder.file("every" + std::to_string(steps)), .steps = steps}};
      for (const std::int64_t stop : {3, 6, 11, 17}) Loop(group, run).train_until(stop);
      Loop last(group, run);
      const auto done = steps == 0 ? 12 : 17 / steps * steps;
      EXPECT_EQ(last.monitor.steps(), done);
      EXPECT_EQ(last.loader.epoch(), done / kSnapshotBatches);
      EXPECT_EQ(last.train_until(-1), whole);
      EXPECT_EQ(last.monitor.steps(), kEpochs * kSnapshotBatches);
      EXPECT_EQ(last.monitor.totals().samples, kEpochs * 23);
      group.barrier();
    }
  });
}

TEST(Snapshot, NeedsNoDurableStore) {
  EXPECT_NE(dynamic_cast<const DurableStore*>(&checkpoint_store()), nullptr) << "the one linked";
  const TemporaryFolder folder;
  run_ranks(2, [&](const ProcessGroup& group) {
    static const CheckpointStore plain;
    use_checkpoint_store(plain);
    const SnapshotSettings run{.snapshot = {.path = folder.file("snapshot"), .steps = 4}};
    const auto whole = Loop(group, {}).train_until(-1);
    for (const std::int64_t stop : {6, 11}) Loop(group, run).train_until(stop);
    EXPECT_FALSE(fs::exists(folder.file("snapshot/manifest.json")));
    EXPECT_EQ(Loop(group, run).train_until(-1), whole);
  });
}

TEST(Snapshot, HoldsWhatTheProgramAdds) {
  const TemporaryFolder folder;
  const SnapshotSettings run{.snapshot = {.path = folder.file("snapshot")}};
  run_ranks(2, [&](const ProcessGroup& group) {
    const auto with_scaler = [&](GradScaler& scaler) {
      return std::make_unique<Loop>(
          group, run, [&](Loop& loop) { loop.snapshot.add(json_part(scaler, "scaler.json")); });
    };
    GradScaler first({.init_scale = 8.0});
    with_scaler(first)->train_until(-1);
    GradScaler second;
    with_scaler(second);
    EXPECT_EQ(second.get_scale(), 8.0);
    EXPECT_ERROR(Loop(group, run), DataError, "got scaler.json; hint: resume with the program");
  });
}

TEST(Snapshot, OfACompleteRunTrainsNothingMoreAndALinkStays) {
  const TemporaryFolder folder;
  fs::create_directory(folder.file("real"));
  fs::create_symlink("real", folder.file("link"));
  run_ranks(1, [&](const ProcessGroup& group) {
    const SnapshotSettings run{.snapshot = {.path = folder.file("link")}};
    const auto whole = Loop(group, run).train_until(-1);
    EXPECT_EQ(whole, Loop(group, {}).train_until(-1));
    EXPECT_TRUE(fs::is_symlink(folder.file("link")));
    EXPECT_TRUE(fs::exists(folder.file("real/manifest.json")));
    Loop again(group, run);
    EXPECT_EQ(again.loader.epoch(), kEpochs);
    EXPECT_EQ(again.train_until(-1), whole);
  });
}

TEST(Snapshot, ASignalSavesOneInTheMiddleOfAnEpoch) {
  const TemporaryFolder folder;
  run_ranks(1, [&](const ProcessGroup& group) {
    const auto path = folder.file("snapshot");
    const SnapshotSettings run{.snapshot = {.path = path}};
    {
      Loop first(group, run);
      const auto hooks = first.snapshot.hooks();
      EXPECT_EQ(hooks.last(), "");
      first.train_until(8);
      EXPECT_EQ(hooks.save(), path);
      EXPECT_EQ(hooks.last(), path);
    }
    Loop second(group, run);
    EXPECT_EQ(second.loader.epoch(), 1);
    EXPECT_EQ(second.loader.first_batch(), 2);
    EXPECT_FALSE(Loop(group, {}).snapshot.hooks().save) << "without a path";
  });
}

TEST(Snapshot, EndsARunThatASignalStopsInASave) {
  const TemporaryFolder folder;
  run_ranks(1, [&](const ProcessGroup& group) {
    StopSignal stop(group);
    std::raise(SIGTERM);
    Loop loop(group, {.snapshot = {.path = folder.file("snapshot"), .steps = 4}});
    EXPECT_THROW(loop.train_until(-1), StoppedBySignal);
    EXPECT_EQ(loop.monitor.steps(), 4);
  });
}

TEST(Snapshot, IsOfOneRunAtATime) {
  const TemporaryFolder folder;
  run_ranks(1, [&](const ProcessGroup& group) {
    const SnapshotSettings run{.snapshot = {.path = folder.file("snapshot") + "/"}};
    {
      const Loop first(group, run);
      EXPECT_ERROR(
          Loop(group, run), UsageError,
          fmt::format("snapshot {}/: in use by process {} on ", folder.file("snapshot"), getpid()));
    }
    EXPECT_NO_THROW(Loop(group, run));
    EXPECT_TRUE(folder.names().empty());
  });
}

TEST(Snapshot, OfOtherSettingsAndOfOtherSumsIsRefused) {
  const TemporaryFolder folder;
  run_ranks(1, [&](const ProcessGroup& group) {
    SnapshotSettings run{.snapshot = {.path = folder.file("snapshot"), .steps = 4},
                         .micro_batch = 2,
                         .settings = {{"--head", "logits"}}};
    Loop(group, run).train_until(4);
    EXPECT_EQ(Loop(group, run).monitor.steps(), 4);
    run.settings[0].value = "log-softmax";
    const auto path = folder.file("snapshot");
    for (const auto effect : {Effect::kWeights, Effect::kTraining, Effect::kOptimizer}) {
      run.settings[0].effect = effect;
      EXPECT_ERROR(Loop(group, run), UsageError, "snapshot " + path + ": " + path,
                   R"( is of another run: --head is "logits" there, and "log-softmax" here)",
                   "; hint: name another folder, or start over: rm -r " + path);
    }
    run.settings[0].effect = Effect::kTogether;
    EXPECT_EQ(Loop(group, run).monitor.steps(), 4);
    run.micro_batch = 4;
    EXPECT_ERROR(Loop(group, run), UsageError, "sums of micro-batches of 2, and this run");
    run.micro_batch = 0;
    EXPECT_ERROR(Loop(group, run), UsageError, "and this run has sums in float");
  });
}

TEST(Snapshot, AnotherNumberOfRanksResumesItInGlobalModeOnly) {
  const TemporaryFolder folder;
  const SnapshotSettings global{.snapshot = {.path = folder.file("global"), .steps = 4}};
  const SnapshotSettings per_device{.snapshot = {.path = folder.file("per_device"), .steps = 2},
                                    .mode = BatchMode::kPerDevice};
  run_ranks(2, [&](const ProcessGroup& group) {
    Loop(group, global).train_until(8);
    Loop(group, per_device).train_until(2);
    auto other = global;
    other.seed = 6;
    EXPECT_THROW(Loop(group, other), Error) << "another order, on all ranks";
    group.barrier();
  });
  run_ranks(1, [&](const ProcessGroup& group) {
    Loop one(group, global);
    EXPECT_EQ(one.monitor.steps(), 8);
    EXPECT_EQ(one.loader.first_batch(), 2);
    one.train_until(-1);
    EXPECT_ERROR(Loop(group, per_device), UsageError,
                 "the position is batch 2 of an epoch with other batches");
  });
}

TEST(Snapshot, RefusesAFolderWithoutANameBeforeTheTraining) {
  run_alone([] {
    EXPECT_ERROR(
        Loop(ProcessGroup::single(), {.snapshot = {.path = "."}}), UsageError,
        "snapshot: expected a folder with a name of its own, got '.'; hint: such as runs/");
  });
}

TEST(Snapshot, RefusesADamagedOneWithAHint) {
  const TemporaryFolder folder;
  run_ranks(1, [&](const ProcessGroup& group) {
    const SnapshotSettings run{.snapshot = {.path = folder.file("snapshot"), .steps = 4}};
    Loop(group, run).train_until(4);
    const auto file = run.snapshot.path + "/optimizer.safetensors";
    std::fstream(file, std::ios::in | std::ios::out).put('#');
    EXPECT_ERROR(Loop(group, run), DataError, file + ": expected sha256 ");
    EXPECT_ERROR(Loop(group, run), DataError, "; hint: ");
    fs::remove_all(run.snapshot.path);
    EXPECT_EQ(Loop(group, run).monitor.steps(), 0) << "a missing one is no error";
    fs::create_directory(folder.file(".snapshot.partial"));
    EXPECT_EQ(Loop(group, run).monitor.steps(), 0) << "one that was never complete";
  });
}

TEST(Snapshot, HoldsAnOptimizerWhoseStateIsDivided) {
  const TemporaryFolder folder;
  run_ranks(2, [&](const ProcessGroup& group) {
    const auto weights_after = [&](const SnapshotSettings& run, std::int64_t end) {
      std::optional<ZeroRedundancyOptimizer> zero;
      Loop loop(group, run, [&](Loop& own) { zero.emplace(own.optimizer, group); });
      loop.train(end);
      return weights_sha256(state_dict(*loop.model));
    };
    const SnapshotSettings run{.snapshot = {.path = folder.file("snapshot"), .steps = 4}};
    const auto whole = weights_after({}, -1);
    weights_after(run, 9);
    EXPECT_EQ(weights_after(run, -1), whole);
  });
}

// The loop of beyond/pipeline, until `end` steps are done.
std::string train_stages(const ProcessGroup& group, const std::string& path, std::int64_t end) {
  const auto own = first_model(basicnet());
  mnist::keep_layers(*own, group.rank(), group.world_size());
  PipelineStage stage(own, group, {.micro_batches = 2});
  SGD optimizer(stage.parameters(), {.lr = 0.1, .momentum = 0.9});
  StepLR scheduler(optimizer, {.step_size = 1, .gamma = 0.5});
  DataLoader loader(image_loader(23, 4).shared_dataset(),
                    {.batch_sampler = divide_batches(23, {.batch_size = 4, .seed = 5})});
  Snapshot snapshot({.path = path, .steps = 2}, group, stage, optimizer, scheduler);
  TrainingMonitor monitor({.quiet = true}, {.group = group}, stage, loader.size());
  snapshot.resume(loader, monitor, Log({.rank = group.rank(), .quiet = true}));
  loader.set_epoch(0);
  monitor.begin_epoch(1, 1, loader.first_batch());
  for (const Batch& batch : loader) {
    const RandomScope random({1, batch.epoch, batch.positions});
    const auto loss = stage.step(batch, [](const torch::Tensor& output, const Batch& part) {
      return basicnet().loss(output, part);
    });
    optimizer.step();
    monitor.step(batch, loss);
    optimizer.zero_grad();
    snapshot.after_step();
    if (monitor.steps() == end) break;
  }
  return weights_sha256(state_dict(stage));
}

TEST(Snapshot, HoldsTheStagesOfAPipeline) {
  const TemporaryFolder folder;
  run_ranks(2, [&](const ProcessGroup& group) {
    const auto path = folder.file("snapshot");
    const auto whole = train_stages(group, "", -1);
    train_stages(group, path, 3);
    EXPECT_TRUE(fs::exists(path + "/model_rank_1.safetensors"));
    EXPECT_EQ(train_stages(group, path, -1), whole);
  });
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// From four ranks over three, one (which writes whole tensors) and two back to four.
TEST(SaveParts, OfShardsAreLoadedByAnyNumberOfRanks) {
  const TemporaryFolder folder;
  int number = 0;
  for (const int world_size : {4, 3, 1, 2, 4}) {
    run_ranks(world_size, [&](const ProcessGroup& group) {
      const auto model = std::make_shared<FullyShardedDataParallel>(first_model(basicnet()), group);
      const auto optimizer = basicnet().make_optimizer(model->parameters());
      const CheckpointParts parts = {model_part("model.safetensors", *model),
                                     optimizer_part("optimizer.safetensors", *optimizer, model)};
      if (number == 0) {
        train(*model, *optimizer, basicnet(), 2, [](int /*step*/) { return random_batch(4); });
      } else {
        load_parts(folder.file(std::to_string(number - 1)), parts, group, Log({.quiet = true}));
      }
      save_parts(folder.file(std::to_string(number)), parts, group);
      model->eval();
      if (world_size == 1) return;
      EXPECT_ERROR(load_parts(folder.file(std::to_string(number)), parts, group, Log()), UsageError,
                   "the network is whole on every rank; hint: call train() or reshard()");
    });
    ++number;
  }
  EXPECT_TRUE(fs::exists(folder.file("2/model.safetensors")));
  for (const std::string name :
       {"model_rank_0", "model_rank_3", "optimizer_rank_0", "optimizer_rank_3"}) {
    const auto file = "/" + name + ".safetensors";
    EXPECT_EQ(bytes_of(folder.file("4" + file)), bytes_of(folder.file("0" + file))) << name;
  }
}

}  // namespace
}  // namespace ladder
