// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ladder/accelerate/accelerator.h"
#include "ladder/core/error.h"
#include "ladder/monitor/evaluation.h"
#include "tests/support/accelerators.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace ladder {
namespace {

using Numbers = std::vector<std::int64_t>;

// The samples of all processes in one pass, gathered from a structure of tensors.
Numbers gathered(const Accelerator& accelerator, const AcceleratedDataLoader& loader) {
  Numbers all;
  for (const Batch& batch : loader) {
    using Named = std::map<std::string, std::vector<torch::Tensor>>;
    const auto [targets, named] = accelerator.gather_for_metrics(
        std::pair{batch.targets, Named{{"images", {batch.inputs.only(), -batch.targets}}}});
    const auto& images = named.at("images").at(0);
    EXPECT_EQ(images.sizes(), (Numbers{targets.size(0), 1, 1, 1}));
    EXPECT_TRUE(torch::equal(images.flatten(), targets.to(torch::kFloat32)));
    EXPECT_TRUE(torch::equal(named.at("images").at(1), -targets));
    const auto* const begin = targets.const_data_ptr<std::int64_t>();
    all.insert(all.end(), begin, begin + targets.numel());
  }
  return all;
}

Numbers in_order(const DataLoader& loader) {
  Numbers all;
  for (const auto& batch : loader.batch_indices()) {
    all.insert(all.end(), batch.indices.begin(), batch.indices.end());
  }
  return all;
}

// The first four are the ones that differ most.
std::vector<DataLoaderConfiguration> configurations() {
  return {{.mode = LoaderMode::kGlobal},
          {.mode = LoaderMode::kPerProcess},
          {.mode = LoaderMode::kSplitBatches},
          {.mode = LoaderMode::kPerProcess, .dispatch_batches = true},
          {.mode = LoaderMode::kGlobal, .dispatch_batches = true},
          {.mode = LoaderMode::kPerProcess, .even_batches = false},
          {.mode = LoaderMode::kSplitBatches, .even_batches = false}};
}

class GatherForMetrics : public testing::TestWithParam<int> {
 protected:
  static int world() { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(World, GatherForMetrics, testing::Range(1, 4));

// Numbers of samples that the processes divide, do not divide, and fewer than processes.
TEST_P(GatherForMetrics, GivesEverySampleOnceAndInOrder) {
  run_accelerators(world(), [](Accelerators& ranks) {
    const int world = ranks.world_size();
    const std::int64_t batch_size = world == 1 ? 4 : 2 * world;  // which split_batches divides
    for (const auto& configuration : configurations()) {
      const auto accelerator = ranks.make({.data_loader = configuration});
      for (const std::int64_t size : {1, 8 * world, 5 * world + 3}) {
        SCOPED_TRACE(testing::Message() << "mode " << static_cast<int>(configuration.mode)
                                        << ", even " << configuration.even_batches << ", dispatch "
                                        << configuration.dispatch_batches << ", size " << size);
        const auto loader = numbered_loader(size, {.batch_size = batch_size, .shuffle = true});
        EXPECT_EQ(gathered(*accelerator, accelerator->prepare(loader)), in_order(loader));
      }
    }
  });
}

TEST(GatherForMetrics3, LeavesOutWhatTheLoaderDrops) {
  run_accelerators(3, [](Accelerators& ranks) {
    for (const auto& configuration : configurations()) {
      const auto accelerator = ranks.make({.data_loader = configuration});
      const auto loader = numbered_loader(20, {.batch_size = 3, .drop_last = true});
      EXPECT_EQ(gathered(*accelerator, accelerator->prepare(loader)), in_order(loader));
    }
  });
}

TEST_P(GatherForMetrics, RefusesTensorsWithoutOneRowPerSampleOfTheInnerLoop) {
  run_accelerators(world(), [](Accelerators& ranks) {
    const auto accelerator = ranks.make();
    auto [train, test] = accelerator->prepare(numbered_loader(8, {.batch_size = 8}),
                                              numbered_loader(5, {.batch_size = 5}));
    for (const Batch& batch : train) {
      EXPECT_ERROR(accelerator->gather_for_metrics(batch.inputs.only().mean()), UsageError,
                   "a scalar", "hint: a mean over the batch includes repeated samples");
      EXPECT_ERROR(accelerator->gather_for_metrics(batch.targets.narrow(0, 0, 1)), UsageError,
                   "1 rows");
      EXPECT_EQ(gathered(*accelerator, test), (Numbers{0, 1, 2, 3, 4})) << "a loop in the loop";
      EXPECT_EQ(accelerator->gather_for_metrics(batch.targets).size(0), 8) << "the outer one again";
    }
    EXPECT_ERROR(accelerator->gather_for_metrics(torch::zeros({8})), UsageError,
                 "call it inside the loop, or use gather");
  });
}

// Scores 1 for the last digit of the number that the image shows: always right.
class Reader : public Model {
 public:
  torch::Tensor forward(const Inputs& inputs) override {
    const auto& images = inputs.only();
    return torch::one_hot(images.flatten().to(torch::kInt64) % 10, 10).to(torch::kFloat32);
  }
  std::shared_ptr<Model> new_like() const override { return std::make_shared<Reader>(); }
};

// NumberedSamples with labels from 0 to 9.
class Digits : public NumberedSamples {
 public:
  using NumberedSamples::NumberedSamples;
  Batch get_batch(std::span<const std::int64_t> indices) const override {
    auto batch = NumberedSamples::get_batch(indices);
    batch.targets = batch.targets % 10;
    return batch;
  }
};

// The mistake that gather_for_metrics is for: each process counts its part, and divides by all.
TEST(EvaluateOfAccelerator, CountsAllWhereOneProcessCountsItsPart) {
  run_accelerators(4, [](Accelerators& ranks) {
    constexpr std::int64_t kPictures = 130;
    const Recipe recipe({.head = "logits"});
    auto first_four = configurations();
    first_four.resize(4);
    for (const auto& configuration : first_four) {
      const auto accelerator = ranks.make({.data_loader = configuration});
      const auto loader =
          accelerator->prepare(DataLoader(std::make_shared<Digits>(kPictures), {.batch_size = 8}));
      Reader model;
      const auto result = evaluate(*accelerator, model, loader, recipe.criterion());
      EXPECT_EQ(result.seen, kPictures);
      EXPECT_EQ(result.accuracy(), 100.0);
      EXPECT_TRUE(model.is_training()) << "as before";

      double correct = 0;
      for (const Batch& batch : loader) {
        const auto answer = model.forward(batch.inputs).argmax(1);
        correct += (answer == batch.targets).sum().item<double>();
      }
      EXPECT_NEAR(100.0 * correct / kPictures, 25.0, 8.0);
    }
  });
}

}  // namespace
}  // namespace ladder
