// SPDX-License-Identifier: Apache-2.0
// The exact sums of an Accelerator: the same weights for any number of processes and threads.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "ladder/accelerate/accelerator.h"
#include "ladder/core/error.h"
#include "ladder/exact/exact_data_parallel.h"
#include "ladder/nn/random_scope.h"
#include "ladder/nn/state_dict.h"
#include "ladder/optim/adam.h"
#include "tests/support/accelerators.h"
#include "tests/support/exact.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/training.h"

namespace ladder {
namespace {

constexpr std::int64_t kMicroBatch = 2;

// What `fn` returns, which must be the same on all ranks.
std::string text_of_ranks(int world_size, const std::function<std::string(Accelerators&)>& fn) {
  const TemporaryFolder folder;
  const auto name_of = [](int rank) { return "rank" + std::to_string(rank); };
  run_accelerators(world_size, [&](Accelerators& ranks) {
    folder.write(name_of(std::stoi(getenv("RANK"))), fn(ranks));
  });
  const auto text = folder.read(name_of(0));
  for (int rank = 1; rank < world_size; ++rank) EXPECT_EQ(folder.read(name_of(rank)), text);
  return text;
}

AcceleratorOptions exact_options(int num_steps = 1) {
  return {.gradient_accumulation = {.num_steps = num_steps},
          .replicate = {.sums = "exact", .micro_batch = kMicroBatch}};
}

// A training run of 37 samples: seven batches of five and one of two, by default in windows of
// three, of which the last has two.
struct ExactRun {
  AcceleratorOptions options = exact_options(3);
  std::int64_t batch_size = kBatch;
  std::function<std::shared_ptr<Model>()> make_model = [] { return small_net(); };
  double max_norm = 1e9;
  double norm_type = 2.0;
};

class ExactTrainee {
 public:
  ExactTrainee(Accelerators& ranks, const ExactRun& run)
      : run_(run), accelerator(ranks.make(run.options)), network(run.make_model()) {
    const std::shared_ptr<torch::optim::Optimizer> adamw =
        std::make_shared<AdamW>(network->parameters());
    std::tie(model, optimizer) = accelerator->prepare(network, adamw);
    loader = std::make_unique<AcceleratedDataLoader>(
        accelerator->prepare(image_loader(kSamples, run.batch_size)));
  }

  void train_until(std::int64_t epochs) {
    while (loader->epoch() < epochs) train_batches(loader->size() + 1);
  }

  // As many, or those that the epoch has left.
  void train_batches(std::int64_t batches) {
    loader->set_epoch(loader->epoch());
    for (const Batch& batch : *loader) {
      const auto accumulation = accelerator->accumulate(*model);
      run_backward(*accelerator, *model, basicnet(), batch);
      accelerator->clip_grad_norm_(model->parameters(), run_.max_norm, run_.norm_type);
      optimizer->step();
      optimizer->zero_grad();
      if (--batches == 0) return;
    }
  }

  std::string hash() const { return weights_sha256(state_dict(*network)); }

 private:
  ExactRun run_;

 public:
  std::unique_ptr<Accelerator> accelerator;
  std::shared_ptr<Model> network;
  std::shared_ptr<Model> model;
  std::shared_ptr<AcceleratedOptimizer> optimizer;
  std::unique_ptr<AcceleratedDataLoader> loader;
};

// The weights after two epochs.
std::string hash_of(int world_size, const ExactRun& run = {}) {
  return text_of_ranks(world_size, [&](Accelerators& ranks) {
    ExactTrainee trainee(ranks, run);
    const auto before = trainee.hash();
    trainee.train_until(2);
    EXPECT_NE(trainee.hash(), before);
    return trainee.hash();
  });
}

TEST(ExactSumsOfAccelerator, GiveOneSetOfWeightsForAnyProcessesAndThreads) {
  const auto expected = hash_of(1);
  for (const int world_size : {2, 3}) EXPECT_EQ(hash_of(world_size), expected) << world_size;
  ExactRun run;
  run.options.threads = 2;
  for (const int world_size : {1, 2}) EXPECT_EQ(hash_of(world_size, run), expected) << world_size;
  run = {};
  run.options.data_loader.dispatch_batches = true;  // rank 0 reads for all
  for (const int world_size : {1, 2}) EXPECT_EQ(hash_of(world_size, run), expected) << world_size;
  run = {};
  run.options.mixed_precision = Precision::kBf16;
  const auto in_bf16 = hash_of(1, run);
  EXPECT_EQ(hash_of(2, run), in_bf16);
  EXPECT_NE(in_bf16, expected);
}

// Sizes and weights are powers of two, so that no product is rounded.
TEST(ExactSumsOfAccelerator, GiveTheWeightsOfLargeBatchesUnderAccumulation) {
  const auto run = [](std::int64_t batch_size, int num_steps) {
    return ExactRun{.options = exact_options(num_steps), .batch_size = batch_size};
  };
  const auto large = hash_of(1, run(16, 1));
  EXPECT_EQ(hash_of(1, run(8, 2)), large);
  EXPECT_EQ(hash_of(2, run(8, 2)), large);
}

// The sum of more than a million numbers, which two threads add in another order. (The squares of a
// 2-norm LibTorch adds in a higher precision, which hides it.)
TEST(ExactSumsOfAccelerator, ClipByANormThatDoesNotDependOnThreads) {
  const auto hash_with = [](int threads) {
    ExactRun run{.options = exact_options(),
                 .batch_size = 16,
                 .make_model = [] { return first_model(basicnet()); },
                 .max_norm = 0.01,
                 .norm_type = 1.0};
    run.options.threads = threads;
    return text_of_ranks(1, [&](Accelerators& ranks) {
      ExactTrainee trainee(ranks, run);
      trainee.train_batches(1);
      return trainee.hash();
    });
  };
  EXPECT_EQ(hash_with(2), hash_with(1));
}

TEST(ExactSumsOfAccelerator, AreDroppedWithAWindow) {
  run_accelerators(2, [](Accelerators& ranks) {
    const auto accelerator = ranks.make(exact_options(2));
    const auto model = accelerator->prepare(small_net());
    const auto& group = accelerator->process_group();
    const auto backward = [&](std::uint64_t seed) {
      const auto accumulation = accelerator->accumulate(*model);
      const auto batch = exact_slice_of(random_batch(8, seed), group, kMicroBatch);
      run_backward(*accelerator, *model, basicnet(), batch);
    };
    backward(1);
    backward(2);
    const auto expected = flat_gradients(*model);
    model->zero_grad();
    backward(3);
    accelerator->drop_window();
    backward(1);
    backward(2);
    EXPECT_TRUE(torch::equal(flat_gradients(*model), expected));
  });
}

TEST(ExactSumsOfAccelerator, WrapTheModelOnOneProcessTooAndNeedTheGlobalLoaderMode) {
  run_accelerators(1, [](Accelerators& ranks) {
    const auto accelerator = ranks.make(exact_options());
    const auto network = small_net();
    const auto model = accelerator->prepare(network);
    const auto* const wrapper = dynamic_cast<const ExactDataParallel*>(model.get());
    ASSERT_NE(wrapper, nullptr);
    EXPECT_EQ(wrapper->micro_batch(), kMicroBatch);
    EXPECT_EQ(&Accelerator::unwrap_model(*model), network.get());
    for (const Batch& batch : accelerator->prepare(image_loader(5, 5))) {
      EXPECT_EQ(batch.micro_batch, kMicroBatch);
    }
    for (const auto mode : {LoaderMode::kPerProcess, LoaderMode::kSplitBatches}) {
      auto options = exact_options();
      options.data_loader.mode = mode;
      EXPECT_ERROR(ranks.make(options), UsageError,
                   "replicate.sums: micro-batches need batches that do not depend on the number of "
                   "processes");
    }
  });
}

TEST(ExactSumsOfAccelerator, CompareTheReplicasAsTheirOwnOptionsSayAndSoDoFastOnes) {
  run_accelerators(2, [](Accelerators& ranks) {
    auto options = exact_options();
    options.replicate.check_replicas = 1;
    for (const char* sums : {"exact", "fast"}) {
      options.replicate.sums = sums;
      const auto accelerator = ranks.make(options);
      const auto model = accelerator->prepare(small_net());
      if (accelerator->is_main_process()) {
        const torch::NoGradGuard no_grad;
        model->parameters().front().add_(1);
      }
      const RandomScope random({.positions = torch::arange(2)});
      EXPECT_ERROR(model->forward(random_batch(2).inputs), DistributedError, "replicas: expected ");
    }
  });
}

TEST(ExactSumsOfAccelerator, GatherEachSampleOfAnEvaluationOnce) {
  run_accelerators(2, [](Accelerators& ranks) {
    const auto accelerator = ranks.make(exact_options());
    const auto loader = accelerator->prepare_eval_loader(numbered_loader(17, {.batch_size = 5}));
    std::vector<torch::Tensor> labels;
    for (const Batch& batch : loader) {
      labels.push_back(accelerator->gather_for_metrics(batch.targets));
    }
    EXPECT_TRUE(torch::equal(torch::cat(labels), torch::arange(17)));
  });
}

// --- resume ---

// In the first epoch on one process, then on two, then on one again.
TEST(ExactSumsOfAccelerator, ResumeOnOtherNumbersOfProcessesToTheSameWeights) {
  const TemporaryFolder folder;
  const auto part = [&](int world_size, const std::string& from, const std::string& to,
                        std::int64_t batches) {
    return text_of_ranks(world_size, [&](Accelerators& ranks) {
      ExactTrainee trainee(ranks, {});
      if (!from.empty()) trainee.accelerator->load_state(folder.file(from));
      batches > 0 ? trainee.train_batches(batches) : trainee.train_until(2);
      trainee.accelerator->save_state(folder.file(to));
      trainee.accelerator->wait_for_everyone();
      return trainee.hash();
    });
  };
  part(1, "", "first", 3);
  part(2, "first", "second", 3);
  EXPECT_EQ(part(1, "second", "third", 0), hash_of(1));
}

TEST(ExactSumsOfAccelerator, RefuseACheckpointOfOtherSums) {
  run_accelerators(1, [](Accelerators& ranks) {
    const auto save = [&](const AcceleratorOptions& options, const std::string& name) {
      ExactTrainee trainee(ranks, {.options = options});
      trainee.train_batches(1);
      return trainee.accelerator->save_state(ranks.folder().file(name));
    };
    const auto expect_refused = [&](const AcceleratorOptions& options, const std::string& path,
                                    const std::string& reason) {
      ExactTrainee trainee(ranks, {.options = options});
      const auto before = trainee.hash();
      EXPECT_ERROR(trainee.accelerator->load_state(path), UsageError, reason);
      EXPECT_EQ(trainee.hash(), before);
    };
    auto other = exact_options();
    other.replicate.micro_batch = 3;
    const auto of_two = save(exact_options(), "of_two");
    const auto of_floats = save({}, "of_floats");
    expect_refused(other, of_two,
                   "it was written with sums of micro-batches of 2, and this run has sums of "
                   "micro-batches of 3");
    expect_refused({}, of_two, "sums of micro-batches of 2, and this run has sums in float");
    expect_refused(exact_options(), of_floats,
                   "sums in float, and this run has sums of micro-batches of 2");
    ExactTrainee same(ranks, {.options = exact_options()});
    EXPECT_NO_THROW(same.accelerator->load_state(of_two));
  });
}

}  // namespace
}  // namespace ladder
