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
    return {.images = labels.to(torch::kFloat32).view({-1, 1, 1, 1}).repeat({1, 1, 4, 4}),
            .labels = labels};
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
  for (const Batch& batch : loader) batches.push_back(values_of(batch.labels));
  return batches;
}

Indices joined(const std::vector<Indices>& batches) {
  Indices all;
  for (const auto& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

TEST(DataLoader, GivesEverySampleOnceForEveryNumberOfWorkers) {
  for (const int workers : kWorkerCounts) {
    const DataLoader loader(numbers(103),
                            {.batch_size = 10, .shuffle = true, .num_workers = workers});
    EXPECT_EQ(loader.size(), 11);
    auto all = joined(labels_of(loader));
    EXPECT_EQ(all, RandomSampler(103, 42).order(0)) << workers << " workers";
    std::sort(all.begin(), all.end());
    EXPECT_EQ(all, SequentialSampler(103).order(0));
  }
}

TEST(DataLoader, ReadsInOrderWithoutShuffle) {
  for (const int workers : kWorkerCounts) {
    const DataLoader loader(numbers(5), {.batch_size = 2, .num_workers = workers});
    EXPECT_EQ(labels_of(loader), (std::vector<Indices>{{0, 1}, {2, 3}, {4}}));
  }
}

TEST(DataLoader, TellsEachBatchWhereItStands) {
  for (const int workers : kWorkerCounts) {
    DataLoader loader(numbers(5), {.batch_size = 2, .shuffle = true, .num_workers = workers});
    loader.set_epoch(7);
    std::int64_t position = 0;
    for (const Batch& batch : loader) {
      EXPECT_EQ(batch.epoch, 7);
      EXPECT_EQ(batch.global_size, batch.size());
      EXPECT_EQ(batch.world_size, 1);
      for (const std::int64_t value : values_of(batch.positions)) EXPECT_EQ(value, position++);
    }
    EXPECT_EQ(position, 5);
  }
}

TEST(DataLoader, DropLastLeavesOutTheShortBatch) {
  const DataLoader loader(numbers(5), {.batch_size = 2, .drop_last = true, .num_workers = 1});
  EXPECT_EQ(loader.size(), 2);
  EXPECT_EQ(labels_of(loader), (std::vector<Indices>{{0, 1}, {2, 3}}));
}

TEST(DataLoader, EpochsHaveOrdersOfTheirOwnThatCanBeRepeated) {
  DataLoader loader(numbers(50), {.batch_size = 8, .shuffle = true});
  const auto first = labels_of(loader);
  EXPECT_EQ(labels_of(loader), first);  // without set_epoch, every walk is the same
  loader.set_epoch(1);
  const auto second = labels_of(loader);
  EXPECT_NE(second, first);
  EXPECT_EQ(joined(second), RandomSampler(50, 42).order(1));
  loader.set_epoch(0);
  EXPECT_EQ(labels_of(loader), first);
}

TEST(DataLoader, TheSeedDecidesTheOrder) {
  const auto order = [](std::uint64_t seed) {
    return joined(labels_of(DataLoader(numbers(50), {.shuffle = true, .seed = seed})));
  };
  EXPECT_EQ(order(7), order(7));
  EXPECT_NE(order(7), order(8));
}

TEST(DataLoader, TakesAnOrderFromOutside) {
  struct Backwards : Sampler {
    std::int64_t size() const override { return 3; }
    Indices order(std::int64_t /*epoch*/) const override { return {4, 2, 0}; }
  };
  const DataLoader loader(numbers(5), {.batch_size = 2, .sampler = std::make_shared<Backwards>()});
  EXPECT_EQ(loader.size(), 2);
  EXPECT_EQ(labels_of(loader), (std::vector<Indices>{{4, 2}, {0}}));
}

TEST(DataLoader, AnEmptySetHasNoBatches) {
  for (const int workers : kWorkerCounts) {
    EXPECT_TRUE(labels_of(DataLoader(numbers(0), {.num_workers = workers})).empty());
  }
}

TEST(DataLoader, MoreWorkersThanBatchesIsFine) {
  EXPECT_EQ(labels_of(DataLoader(numbers(3), {.batch_size = 2, .num_workers = 8})),
            (std::vector<Indices>{{0, 1}, {2}}));
}

TEST(DataLoader, AnExceptionOfTheDatasetReachesTheLoopInItsPlace) {
  for (const int workers : kWorkerCounts) {
    const DataLoader loader(numbers(20, /*bad=*/13), {.batch_size = 2, .num_workers = workers});
    Indices seen;
    const auto walk = [&] {
      for (const Batch& batch : loader) seen.push_back(batch.labels[0].item<std::int64_t>());
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
      if (batch.labels[0].item<std::int64_t>() == 1) break;
    }
    EXPECT_EQ(ThreadProbe::alive(), before);
    EXPECT_LE(dataset->reads, 8) << "two taken, two ahead for each of three workers";
  }
}

TEST(DataLoader, WalksDoNotDisturbEachOther) {
  const DataLoader loader(numbers(6), {.batch_size = 2, .num_workers = 1});
  auto outer = loader.begin();
  EXPECT_EQ(values_of((*outer).labels), (Indices{0, 1}));
  EXPECT_EQ(joined(labels_of(loader)), (Indices{0, 1, 2, 3, 4, 5}));
  ++outer;
  EXPECT_EQ(values_of((*outer).labels), (Indices{2, 3}));
}

TEST(DataLoader, AWalkMayOutliveItsLoader) {
  auto loader = std::make_unique<DataLoader>(numbers(4), DataLoaderOptions{.batch_size = 2});
  auto walk = loader->begin();
  loader.reset();
  ++walk;
  EXPECT_EQ(values_of((*walk).labels), (Indices{2, 3}));
}

// The first pixel of every image in reading order, after a shift by up to one pixel.
torch::Tensor shifted_images(int workers, std::int64_t batch_size) {
  const auto shift = std::make_shared<RandomShift>(RandomShiftOptions{.max_pixels = 1, .fill = -1});
  DataLoader loader(
      numbers(40),
      {.batch_size = batch_size, .shuffle = true, .num_workers = workers, .transform = shift});
  loader.set_epoch(2);
  std::vector<torch::Tensor> images;
  for (const Batch& batch : loader) images.push_back(batch.images);
  return torch::cat(images);
}

TEST(DataLoader, WorkersAndBatchSizeDoNotChangeTheAugmentation) {
  const auto images = shifted_images(0, 8);
  EXPECT_GT(images.eq(-1).sum().item<std::int64_t>(), 0);
  for (const int workers : kWorkerCounts) {
    EXPECT_TRUE(torch::equal(shifted_images(workers, 8), images)) << workers << " workers";
  }
  EXPECT_TRUE(torch::equal(shifted_images(3, 7), images));
}

TEST(DataLoader, AugmentsByTheEpochAndTheIndexOfTheSample) {
  const RandomShift shift({.max_pixels = 1, .fill = -1});
  const auto order = RandomSampler(40, 42).order(2);
  auto wanted = numbers(40)->get_batch(order).images;
  shift.apply(wanted, order, /*epoch=*/2);
  EXPECT_TRUE(torch::equal(shifted_images(3, 8), wanted));
}

TEST(DataLoader, PinsItsBatchesForAGpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no GPU";
  for (const Batch& batch : DataLoader(numbers(4), {.num_workers = 1, .pin_memory = true})) {
    EXPECT_TRUE(batch.images.is_pinned());
    EXPECT_TRUE(batch.labels.is_pinned());
  }
}

TEST(DataLoader, RefusesShuffleTogetherWithASampler) {
  const auto sampler = std::make_shared<SequentialSampler>(4);
  EXPECT_ERROR(DataLoader(numbers(4), {.shuffle = true, .sampler = sampler}), UsageError,
               "DataLoader: shuffle and a sampler exclude each other; hint: the sampler decides");
}

TEST(DataLoader, RefusesImpossibleNumbers) {
  EXPECT_ERROR(DataLoader(numbers(4), {.batch_size = 0}), UsageError,
               "batch size: expected a number > 0, got 0");
  EXPECT_ERROR(DataLoader(numbers(4), {.num_workers = -1}), UsageError,
               "--num-workers: expected a number >= 0, got -1");
}

}  // namespace
}  // namespace ladder
