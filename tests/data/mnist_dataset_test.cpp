// SPDX-License-Identifier: Apache-2.0
#include "ladder/data/mnist_dataset.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "ladder/core/error.h"
#include "tests/support/expect_error.h"

namespace ladder {
namespace {

const std::string kRoot = LADDER_SOURCE_DIR "/data/mnist";

using Indices = std::vector<std::int64_t>;

const MnistDataset& train_set() {
  static const MnistDataset set(kRoot, Split::kTrain, {.normalization = kMnistNormalization});
  return set;
}

Indices range(std::int64_t begin, std::int64_t end) {
  Indices indices(static_cast<std::size_t>(end - begin));
  std::iota(indices.begin(), indices.end(), begin);
  return indices;
}

std::array<std::int64_t, 10> label_counts(const MnistDataset& set) {
  constexpr std::int64_t kChunk = 1000;
  std::array<std::int64_t, 10> counts{};
  for (std::int64_t begin = 0; begin < set.size(); begin += kChunk) {
    const Batch batch = set.get_batch(range(begin, std::min(begin + kChunk, set.size())));
    for (std::int64_t i = 0; i < batch.size(); ++i) {
      ++counts.at(static_cast<std::size_t>(batch.labels[i].item<std::int64_t>()));
    }
  }
  return counts;
}

TEST(MnistDataset, HoldsTheSixtyThousandTrainingImages) {
  EXPECT_EQ(train_set().size(), 60000);
  EXPECT_EQ(train_set().description(), "MNIST train, 60000 images");
  const Batch batch = train_set().get_batch(range(0, 5));
  EXPECT_TRUE(torch::equal(batch.labels, torch::tensor({5, 0, 4, 1, 9}, torch::kInt64)));
  EXPECT_EQ(batch.images.sizes(), (std::vector<std::int64_t>{5, 1, 28, 28}));
  EXPECT_EQ(batch.images.scalar_type(), torch::kFloat32);
}

TEST(MnistDataset, HasTheKnownNumberOfEachDigit) {
  const MnistDataset test_set(kRoot, Split::kTest);
  EXPECT_EQ(label_counts(test_set),
            (std::array<std::int64_t, 10>{980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009}));
  EXPECT_EQ(
      label_counts(train_set()),
      (std::array<std::int64_t, 10>{5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949}));
}

// The pixels of the first images, as torchvision's ToTensor sees them.
torch::Tensor raw_pixels(std::int64_t count) {
  const MnistFiles files = read_mnist_files(kRoot, Split::kTest);
  auto bytes = torch::empty({count, 1, 28, 28}, torch::kUInt8);
  std::copy_n(files.images.pixels.data(), bytes.numel(), bytes.mutable_data_ptr<std::uint8_t>());
  return bytes;
}

TEST(MnistDataset, NormalisesAsTorchvisionDoesToTheLastBit) {
  const auto scaled = raw_pixels(200).to(torch::kFloat32).div(255);
  const auto mean = torch::tensor(0.1307, torch::kFloat32);
  const auto std = torch::tensor(0.3081, torch::kFloat32);
  const MnistDataset set(kRoot, Split::kTest, {.normalization = kMnistNormalization});
  EXPECT_TRUE(torch::equal(set.get_batch(range(0, 200)).images, (scaled - mean) / std));
  EXPECT_EQ(kMnistNormalization.background(), ((torch::zeros({}) - mean) / std).item<float>());
}

void expect_equal(const Batch& got, const Batch& wanted) {
  EXPECT_TRUE(torch::equal(got.images.cpu(), wanted.images));
  EXPECT_TRUE(torch::equal(got.labels.cpu(), wanted.labels));
}

TEST(ResidentImages, GatherTheBatchesOfTheOnePass) {
  const MnistDataset set(kRoot, Split::kTest, {.normalization = kMnistNormalization});
  const ResidentImages resident(read_mnist_files(kRoot, Split::kTest), 500, kMnistNormalization,
                                torch::kCPU);
  for (const Indices& indices : {Indices{499, 0, 17, 17}, range(0, 500), Indices{}}) {
    expect_equal(resident.gather(indices), set.get_batch(indices));
  }
}

TEST(MnistDataset, LiesOnAGpu) {
  if (!torch::hasCUDA()) GTEST_SKIP() << "skipped: no GPU";
  const MnistDataset here(kRoot, Split::kTest, {kMnistNormalization});
  const MnistDataset there(kRoot, Split::kTest, {kMnistNormalization, 0, torch::kCUDA});
  EXPECT_TRUE(there.get_batch(Indices{3}).images.is_cuda());
  expect_equal(there.get_batch(range(0, 700)), here.get_batch(range(0, 700)));
  EXPECT_THROW(there.get_batch(Indices{10000}), c10::Error);
}

TEST(MnistDataset, OnlyDividesBy255ByDefault) {
  const MnistDataset set(kRoot, Split::kTest);
  const auto scaled = raw_pixels(200).to(torch::kFloat32).div(255);
  EXPECT_TRUE(torch::equal(set.get_batch(range(0, 200)).images, scaled));
  EXPECT_EQ(Normalization{}.background(), 0.0F);
  EXPECT_FALSE(std::signbit(Normalization{}.background())) << "a black pixel is not minus zero";
}

TEST(MnistDataset, GivesTheSamplesInTheOrderAskedFor) {
  const Batch some = train_set().get_batch(Indices{59999, 0, 0});
  EXPECT_TRUE(torch::equal(some.labels, torch::tensor({8, 5, 5}, torch::kInt64)));
  EXPECT_TRUE(torch::equal(some.images[1], some.images[2]));
  EXPECT_FALSE(torch::equal(some.images[0], some.images[1]));
  EXPECT_TRUE(torch::equal(some.images[1], train_set().get_batch(range(0, 1)).images[0]));
}

TEST(MnistDataset, GivesAnEmptyBatchForNoIndices) {
  const Batch batch = train_set().get_batch({});
  EXPECT_EQ(batch.size(), 0);
  EXPECT_EQ(batch.images.sizes(), (std::vector<std::int64_t>{0, 1, 28, 28}));
}

TEST(MnistDataset, LeavesPositionsToTheLoader) {
  EXPECT_FALSE(train_set().get_batch(range(0, 1)).positions.defined());
}

TEST(MnistDataset, LimitTakesTheFirstSamples) {
  const MnistDataset set(kRoot, Split::kTest, {.limit = 3});
  EXPECT_EQ(set.size(), 3);
  EXPECT_TRUE(
      torch::equal(set.get_batch(range(0, 3)).labels, torch::tensor({7, 2, 1}, torch::kInt64)));
  EXPECT_ERROR(set.get_batch(Indices{3}), c10::Error, "sample 3 of a data set of 3");
  EXPECT_ERROR(set.get_batch(Indices{-1}), c10::Error, "sample -1 of a data set of 3");
}

TEST(MnistDataset, RefusesALimitBeyondTheSet) {
  EXPECT_EQ(MnistDataset(kRoot, Split::kTest, {.limit = 10000}).size(), 10000);
  EXPECT_ERROR(MnistDataset(kRoot, Split::kTest, {.limit = 10001}), UsageError,
               "--limit-test: expected 0 (all) to 10000, got 10001");
  EXPECT_ERROR(MnistDataset(kRoot, Split::kTest, {.limit = -1}), UsageError,
               "--limit-test: expected 0 (all) to 10000, got -1");
}

TEST(MnistDataset, PassesOnThatAFileIsMissing) {
  EXPECT_ERROR(MnistDataset("/nonexistent", Split::kTrain), DataError,
               "/nonexistent/train-images-idx3-ubyte");
}

}  // namespace
}  // namespace ladder
