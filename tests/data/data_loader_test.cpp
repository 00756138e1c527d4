// SPDX-License-Identifier: Apache-2.0
#include "ladder/data/data_loader.h"

#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/data/dataset.h"
#include "ladder/data/distributed_sampler.h"
#include "ladder/data/random_shift.h"
#include "mnist/dataset.h"
#include "tests/support/expect_error.h"

namespace ladder {
namespace {

using Indices = std::vector<std::int64_t>;

constexpr int kWorkerCounts[] = {0, 1, 3};

// Counts the threads that have read from it and not ended yet.
struct ThreadProbe {
  static std::atomic<int>& alive() {
    static std::atomic<int> count = 0;
    return count;
  }
  ThreadProbe() { ++alive(); }
  ~ThreadProbe() { --alive(); }
};

// Samples whose pixels and label are their index. Reading `bad` throws.
class Numbers : public Dataset {
 public:
  explicit Numbers(std::int64_t size, std::int64_t bad = -1) : size_(size), bad_(bad) {}

  std::int64_t size() const override { return size_; }

  Batch get_batch(std::span<const std::int64_t> indices) const override {
    thread_local const ThreadProbe probe;
    ++reads;
    const Indices values(indices.begin(), indices.end());
    if (std::find(values.begin(), values.end(), bad_) != values.end()) {
      throw std::runtime_error("sample " + std::to_string(bad_) + " is damaged");
    }
    const auto labels = torch::tensor(values, torch::kInt64);
    return {.inputs = labels.to(torch::kFloat32).view({-1, 1, 1, 1}).repeat({1, 1, 4, 4}),
            .targets = labels};
  }

  mutable std::atomic<int> reads = 0;

 private:
  std::int64_t size_;
  std::int64_t bad_;
};

std::shared_ptr<Numbers> numbers(std::int64_t size, std::int64_t bad = -1) {
  return std::make_shared<Numbers>(size, bad);
}

Indices values_of(const torch::Tensor& tensor) {
  const auto* first = tensor.const_data_ptr<std::int64_t>();
  return {first, first + tensor.numel()};
}

std::vector<Indices> labels_of(const DataLoader& loader) {
  std::vector<Indices> batches;
  for (const Batch& batch : loader) batches.push_back(values_of(batch.targets));
  return batches;
}

Indices joined(const std::vector<Indices>& batches) {
  Indices all;
  for (const auto& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

TEST(DataLoader, GivesEverySampleOnceForEveryNumberOfWorkers) {
  for (const int workers : {0, 1, 3, 8}) {  // 8: more than batches
    const DataLoader loader(numbers(103),
                            {.batch_size = 10, .shuffle = true, .num_workers = workers});
    EXPECT_EQ(loader.size(), 11);
    EXPECT_EQ(joined(labels_of(loader)), RandomSampler(103, 42).order(0)) << workers << " workers";
    const DataLoader in_order(numbers(5), {.batch_size = 2, .num_workers = workers});
    EXPECT_EQ(labels_of(in_order), (std::vector<Indices>{{0, 1}, {2, 3}, {4}}));
    const DataLoader whole(numbers(5),
                           {.batch_size = 2, .drop_last = true, .num_workers = workers});
    EXPECT_EQ(whole.size(), 2);
    EXPECT_EQ(labels_of(whole), (std::vector<Indices>{{0, 1}, {2, 3}}));
    EXPECT_TRUE(labels_of(DataLoader(numbers(0), {.num_workers = workers})).empty());
  }
  EXPECT_EQ(DataLoader(numbers(129)).size(), 3) << "batches of 64 by default";
  EXPECT_EQ(DataLoader(numbers(128)).size(), 2);
}

TEST(DataLoader, EpochAndSeedDecideTheOrder) {
  DataLoader loader(numbers(50), {.batch_size = 8, .shuffle = true});
  const auto first = labels_of(loader);
  EXPECT_EQ(labels_of(loader), first);  // without set_epoch, every walk is the same
  loader.set_epoch(1);
  EXPECT_NE(labels_of(loader), first);
  EXPECT_EQ(joined(labels_of(loader)), RandomSampler(50, 42).order(1));
  loader.set_epoch(0);
  EXPECT_EQ(labels_of(loader), first);
  EXPECT_EQ(joined(labels_of(DataLoader(numbers(50), {.shuffle = true, .seed = 7}))),
            RandomSampler(50, 7).order(0));
}

TEST(DataLoader, TakesAnOrderAndBatchesFromOutside) {
  struct EverySecond : Sampler {
    std::int64_t size() const override { return 3; }
    Indices order(std::int64_t /*epoch*/) const override { return {4, 2, 0}; }
  };
  struct Pairs : BatchSampler {
    Pairs() : BatchSampler(std::make_shared<SequentialSampler>(4), 4, false) {}
    std::int64_t size() const override { return 2; }
    std::vector<BatchIndices> batches_of(std::int64_t /*epoch*/) const override {
      return {{.indices = {3, 0}, .positions = {0, 1}, .global_size = 2},
              {.indices = {1, 2}, .positions = {2, 3}, .global_size = 2}};
    }
  };
  const DataLoader ordered(numbers(5),
                           {.batch_size = 2, .sampler = std::make_shared<EverySecond>()});
  EXPECT_EQ(ordered.size(), 2);
  EXPECT_EQ(labels_of(ordered), (std::vector<Indices>{{4, 2}, {0}}));
  const DataLoader paired(numbers(4), {.batch_sampler = std::make_shared<Pairs>()});
  EXPECT_EQ(paired.size(), 2);
  EXPECT_EQ(labels_of(paired), (std::vector<Indices>{{3, 0}, {1, 2}}));
}

TEST(DataLoader, AnExceptionOfTheDatasetReachesTheLoopInItsPlace) {
  for (const int workers : kWorkerCounts) {
    const DataLoader loader(numbers(20, /*bad=*/13), {.batch_size = 2, .num_workers = workers});
    Indices seen;
    const auto walk = [&] {
      for (const Batch& batch : loader) seen.push_back(batch.targets[0].item<std::int64_t>());
    };
    EXPECT_ERROR(walk(), std::runtime_error, "sample 13 is damaged");
    EXPECT_EQ(seen, (Indices{0, 2, 4, 6, 8, 10})) << "the batches before the bad one";
    EXPECT_LE(ThreadProbe::alive(), 1) << "workers outlive the loop";
  }
}

TEST(DataLoader, LeavingTheLoopEarlyEndsTheWorkers) {
  const int before = ThreadProbe::alive();  // this thread, if an earlier test read in it
  for (int round = 0; round < 20; ++round) {
    const auto dataset = numbers(1000);
    const DataLoader loader(dataset, {.batch_size = 1, .num_workers = 3});
    for (const Batch& batch : loader) {
      if (batch.targets[0].item<std::int64_t>() == 1) break;
    }
    EXPECT_EQ(ThreadProbe::alive(), before);
    EXPECT_LE(dataset->reads, 8) << "two taken, two ahead for each of three workers";
  }
}

TEST(DataLoader, WalksDoNotDisturbEachOtherAndMayOutliveTheirLoader) {
  auto loader = std::make_unique<DataLoader>(numbers(6),
                                             DataLoaderOptions{.batch_size = 2, .num_workers = 1});
  auto outer = loader->begin();
  EXPECT_EQ(values_of((*outer).targets), (Indices{0, 1}));
  EXPECT_EQ(joined(labels_of(*loader)), (Indices{0, 1, 2, 3, 4, 5}));
  loader.reset();
  ++outer;
  EXPECT_EQ(values_of((*outer).targets), (Indices{2, 3}));
}

// The first pixel of every image in reading order, after a shift by up to one pixel.
torch::Tensor shifted_images(int workers, std::int64_t batch_size) {
  const auto shift = std::make_shared<RandomShift>(RandomShiftOptions{.max_pixels = 1, .fill = -1});
  DataLoader loader(
      numbers(40),
      {.batch_size = batch_size, .shuffle = true, .num_workers = workers, .transform = shift});
  loader.set_epoch(2);
  std::vector<torch::Tensor> images;
  for (const Batch& batch : loader) images.push_back(batch.inputs.only());
  return torch::cat(images);
}

TEST(DataLoader, AugmentsByTheEpochAndTheIndexOfTheSampleAlone) {
  const RandomShift shift({.max_pixels = 1, .fill = -1});
  const auto order = RandomSampler(40, 42).order(2);
  auto wanted = numbers(40)->get_batch(order).inputs;
  shift.apply(wanted, order, /*epoch=*/2);
  EXPECT_GT(wanted.only().eq(-1).sum().item<std::int64_t>(), 0);
  for (const int workers : kWorkerCounts) {
    EXPECT_TRUE(torch::equal(shifted_images(workers, 8), wanted.only())) << workers << " workers";
  }
  EXPECT_TRUE(torch::equal(shifted_images(3, 7), wanted.only()));
}

// The loaders of several ranks.

std::shared_ptr<ShardedBatchSampler> shard(std::int64_t size, std::int64_t batch_size,
                                           std::int64_t world_size, std::int64_t rank) {
  return std::make_shared<ShardedBatchSampler>(
      std::make_shared<RandomSampler>(size, 42),
      ShardedBatchSamplerOptions{
          .batch_size = batch_size, .rank = rank, .world_size = world_size, .micro_batch = 1});
}

TEST(DataLoaderOfARank, GivesTheSliceOfEveryBatchAndSaysWhereItStands) {
  for (const int workers : kWorkerCounts) {
    DataLoader loader(numbers(7), {.batch_sampler = shard(7, 4, 2, 1), .num_workers = workers});
    loader.set_epoch(5);
    const auto order = RandomSampler(7, 42).order(5);
    EXPECT_EQ(loader.size(), 2);
    EXPECT_EQ(labels_of(loader), (std::vector<Indices>{{order[2], order[3]}, {order[6]}}));
    std::vector<Indices> positions;
    Indices global_sizes;
    for (const Batch& batch : loader) {
      positions.push_back(values_of(batch.positions));
      global_sizes.push_back(batch.global_size);
      EXPECT_EQ(batch.world_size, 2);
      EXPECT_EQ(batch.epoch, 5);
      EXPECT_EQ(batch.micro_batch, 1);
      EXPECT_EQ(values_of(batch.indices), values_of(batch.targets)) << "the labels of Numbers";
    }
    EXPECT_EQ(positions, (std::vector<Indices>{{2, 3}, {6}}));
    EXPECT_EQ(global_sizes, (Indices{4, 3}));
  }
}

TEST(DataLoaderOfARank, GivesAnEmptyBatchInsteadOfNone) {
  const auto dataset = std::make_shared<mnist::Dataset>(
      LADDER_SOURCE_DIR "/data/mnist", mnist::Split::kTest, mnist::DatasetOptions{.limit = 67});
  const auto shift = std::make_shared<RandomShift>(RandomShiftOptions{});
  for (const int workers : kWorkerCounts) {
    const DataLoader loader(
        dataset,
        {.batch_sampler = shard(67, 64, 4, 3), .num_workers = workers, .transform = shift});
    Indices sizes;
    for (const Batch& batch : loader) {
      sizes.push_back(batch.size());
      EXPECT_EQ(batch.inputs.only().sizes(), (Indices{batch.size(), 1, 28, 28}));
      EXPECT_EQ(batch.inputs.only().scalar_type(), torch::kFloat32);
      EXPECT_EQ(batch.positions.sizes(), (Indices{batch.size()}));
      EXPECT_EQ(batch.positions.scalar_type(), torch::kInt64);
    }
    EXPECT_EQ(sizes, (Indices{16, 0}));
  }
}

TEST(DataLoaderOfARank, RefusesToTrainWithASamplerForEvaluation) {
  const auto sampler = std::make_shared<ExactEvalSampler>(10);
  const auto batch_sampler = std::make_shared<BatchSampler>(sampler, 4, /*drop_last=*/false);
  for (DataLoaderOptions options :
       {DataLoaderOptions{.sampler = sampler}, DataLoaderOptions{.batch_sampler = batch_sampler}}) {
    EXPECT_ERROR(DataLoader(numbers(10), options).set_epoch(1), UsageError,
                 "DataLoader::set_epoch: an evaluation sampler gives ranks unequal parts", "hint");
    options.transform = std::make_shared<RandomShift>(RandomShiftOptions{});
    EXPECT_ERROR(DataLoader(numbers(10), options), UsageError,
                 "DataLoader: a transform with an evaluation sampler; hint: evaluate");
  }
  EXPECT_ERROR(DataLoader(numbers(10), {.sampler = sampler, .drop_last = true}), UsageError,
               "drop_last: an evaluation sampler must not drop samples");
}

std::vector<Batch> batches_from(const DataLoader& loader, std::int64_t first) {
  std::vector<Batch> batches;
  for (auto it = loader.begin_at(first); it != std::default_sentinel; ++it) batches.push_back(*it);
  return batches;
}

void expect_same_batch(const Batch& batch, const Batch& wanted) {
  EXPECT_TRUE(torch::equal(batch.inputs.only(), wanted.inputs.only()));
  EXPECT_TRUE(torch::equal(batch.targets, wanted.targets));
  EXPECT_TRUE(torch::equal(batch.positions, wanted.positions));
  EXPECT_EQ(batch.epoch, wanted.epoch);
  EXPECT_EQ(batch.global_size, wanted.global_size);
  EXPECT_EQ(batch.world_size, wanted.world_size);
}

TEST(DataLoader, BeginsInTheMiddleWithTheRestOfTheFullWalk) {
  for (const int workers : {0, 2}) {
    const auto shift = std::make_shared<RandomShift>(RandomShiftOptions{.max_pixels = 1});
    DataLoader loader(
        numbers(43),
        {.batch_sampler = shard(43, 4, 2, 1), .num_workers = workers, .transform = shift});
    loader.set_epoch(3);
    std::vector<Batch> all;
    for (const Batch& batch : loader) all.push_back(batch);
    ASSERT_EQ(all.size(), 11U);
    for (std::int64_t first = 0; first <= 11; ++first) {
      const auto rest = batches_from(loader, first);
      ASSERT_EQ(std::ssize(rest), 11 - first) << workers << " workers";
      for (std::size_t i = 0; i < rest.size(); ++i) {
        expect_same_batch(rest[i], all[static_cast<std::size_t>(first) + i]);
      }
    }
  }
}

TEST(DataLoader, ReadsNothingBeforeTheBatchItBeginsWith) {
  for (const int workers : {0, 2}) {
    const auto dataset = numbers(20, /*bad=*/3);
    const DataLoader loader(dataset, {.batch_size = 2, .num_workers = workers});
    EXPECT_EQ(batches_from(loader, 7).size(), 3U);
    EXPECT_EQ(dataset->reads, 3);
    EXPECT_TRUE(batches_from(loader, 10).empty());
    EXPECT_EQ(dataset->reads, 3);
  }
}

TEST(DataLoader, ResumesOneEpochInTheMiddleAndBeginsTheOthersWithTheirFirstBatch) {
  DataLoader loader(numbers(10), {.batch_size = 2, .shuffle = true});
  loader.set_epoch(3);
  const auto whole = labels_of(loader);
  DataLoader resumed(numbers(10), {.batch_size = 2, .shuffle = true});
  resumed.resume_at(3, 2);
  resumed.set_epoch(3);
  EXPECT_EQ(resumed.epoch(), 3);
  EXPECT_EQ(resumed.first_batch(), 2);
  EXPECT_EQ(labels_of(resumed), std::vector<Indices>(whole.begin() + 2, whole.end()));
  resumed.set_epoch(4);
  EXPECT_EQ(resumed.first_batch(), 0);
  EXPECT_EQ(labels_of(resumed).size(), 5U);
  resumed.resume_at(3, 5);
  EXPECT_EQ(labels_of(resumed).size(), 0U) << "after the last batch";
}

TEST(DataLoader, CanBeMadeAgainWithOtherBatches) {
  DataLoader loader(numbers(10), {.batch_size = 4, .shuffle = true, .seed = 7, .num_workers = 2});
  loader.set_epoch(3);
  EXPECT_EQ(loader.epoch(), 3);
  EXPECT_EQ(loader.options().num_workers, 2);
  EXPECT_EQ(loader.options().batch_size, 4);
  EXPECT_EQ(loader.batch_sampler()->whole_size(), 10);
  const auto part = std::make_shared<ShardedBatchSampler>(
      loader.batch_sampler(), ShardedBatchSamplerOptions{.rank = 1, .world_size = 2});
  DataLoader half = with_batches(loader, part);
  EXPECT_EQ(half.options().num_workers, 2);
  half.set_epoch(loader.epoch());
  const auto whole = labels_of(loader);
  EXPECT_EQ(labels_of(half),
            (std::vector<Indices>{
                {whole[0][2], whole[0][3]}, {whole[1][2], whole[1][3]}, {whole[2][1]}}));
  EXPECT_EQ(&half.dataset(), &loader.dataset());
}

TEST(DataLoader, TellsItsPlanWithoutReading) {
  const auto dataset = numbers(10);
  DataLoader loader(dataset, {.batch_size = 4, .shuffle = true});
  loader.set_epoch(2);
  std::vector<Indices> planned;
  for (const auto& plan : loader.batch_indices()) planned.push_back(plan.indices);
  EXPECT_EQ(dataset->reads, 0);
  EXPECT_EQ(planned, labels_of(loader));
}

TEST(DataLoader, RefusesImpossibleNumbersAndWhatASamplerHasDecided) {
  const auto batches = shard(4, 2, 1, 0);
  const auto order = std::make_shared<SequentialSampler>(4);
  const std::string exclude = " and a batch_sampler exclude each other; hint: the batch_sampler";
  const std::vector<std::pair<DataLoaderOptions, std::string>> cases = {
      {{.batch_size = 2, .batch_sampler = batches}, "DataLoader: batch_size" + exclude},
      {{.batch_size = 64, .batch_sampler = batches}, "batch_size" + exclude},
      {{.shuffle = true, .batch_sampler = batches}, "shuffle" + exclude},
      {{.sampler = order, .batch_sampler = batches}, "a sampler" + exclude},
      {{.drop_last = true, .batch_sampler = batches}, "drop_last" + exclude},
      {{.shuffle = true, .sampler = order}, "shuffle and a sampler exclude each other"},
      {{.batch_size = 0}, "batch_size: expected 1 to 10000000, got 0"},
      {{.num_workers = -1}, "num_workers: expected 0 to 1024, got -1; hint: 0 reads"}};
  for (const auto& [options, text] : cases) {
    EXPECT_ERROR(DataLoader(numbers(4), options), UsageError, text);
  }
  const DataLoader loader(numbers(5), {.batch_size = 2});
  EXPECT_ERROR(loader.begin_at(-1), UsageError, "DataLoader::begin_at: expected 0 to 3, got -1");
  EXPECT_ERROR(loader.begin_at(4), UsageError, "DataLoader::begin_at: expected 0 to 3, got 4");
}

TEST(DataLoader, PinsItsBatchesForAGpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no GPU";
  for (const Batch& batch : DataLoader(numbers(4), {.num_workers = 1, .pin_memory = true})) {
    EXPECT_TRUE(batch.inputs.only().is_pinned());
    EXPECT_TRUE(batch.targets.is_pinned());
  }
}

// A target more than there are indices.
struct OneTooMany : Numbers {
  using Numbers::Numbers;
  Batch get_batch(std::span<const std::int64_t> indices) const override {
    auto batch = Numbers::get_batch(indices);
    batch.targets = torch::cat({batch.targets, batch.targets.slice(0, 0, 1)});
    return batch;
  }
};

TEST(DataLoader, RefusesBatchesWithoutARowPerIndex) {
  for (const int workers : {0, 2}) {
    EXPECT_ERROR(labels_of(DataLoader(std::make_shared<OneTooMany>(4),
                                      {.batch_size = 2, .num_workers = workers})),
                 UsageError, "Dataset::get_batch: expected 2 rows, one per index, got 3");
  }
}

TEST(DataLoader, RefusesNoDataSetAndTensorsThatDiffer) {
  EXPECT_ERROR(DataLoader(nullptr), UsageError, "DataLoader: expected a data set, not set");
  EXPECT_ERROR(TensorDataset(torch::ones({3, 2}), torch::ones({4})), UsageError,
               "input targets: expected 3 rows, as inputs has, got '4 rows'");
}

}  // namespace
}  // namespace ladder
