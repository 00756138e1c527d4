// SPDX-License-Identifier: Apache-2.0
#include "mnist/dataset.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ladder/checkpoint/safetensors.h"
#include "ladder/core/error.h"
#include "ladder/io/sha256.h"
#include "tests/support/expect_error.h"

namespace mnist {
namespace {

using namespace ladder;

const std::string kRoot = LADDER_SOURCE_DIR "/data/mnist";

using Indices = std::vector<std::int64_t>;

const Dataset& train_set() {
  static const Dataset set(kRoot, Split::kTrain, {.normalization = kMnistNormalization});
  return set;
}

Indices range(std::int64_t begin, std::int64_t end) {
  Indices indices(static_cast<std::size_t>(end - begin));
  std::iota(indices.begin(), indices.end(), begin);
  return indices;
}

TEST(Dataset, HoldsTheSixtyThousandTrainingImages) {
  EXPECT_EQ(train_set().size(), 60000);
  EXPECT_EQ(train_set().description(), "MNIST train, 60000 images");
  const Batch batch = train_set().get_batch(range(0, 5));
  EXPECT_TRUE(torch::equal(batch.targets, torch::tensor({5, 0, 4, 1, 9}, torch::kInt64)));
  EXPECT_EQ(batch.inputs.only().sizes(), (std::vector<std::int64_t>{5, 1, 28, 28}));
  EXPECT_EQ(batch.inputs.only().scalar_type(), torch::kFloat32);
}

// Both sets, pixels and labels, and what a batch makes of the first eight images to test.
TEST(Dataset, OfAFormulaHasPythonsBytes) {
  const auto golden = load_safetensors(LADDER_SOURCE_DIR "/tests/golden/models.safetensors");
  const Recipe recipe({.name = "stack"});
  const auto train = load_train({.root = "/nonexistent"}, recipe);
  const auto test = load_test({.root = "/nonexistent"}, recipe);
  EXPECT_EQ(train->description(), "formula train, 12800 images");
  EXPECT_EQ(test->description(), "formula test, 2000 images");
  EXPECT_EQ(train->size(), 12800);
  const Batch batch = test->get_batch(range(0, 8));
  EXPECT_TRUE(torch::equal(batch.inputs.only(), golden.tensors.at("stack.input")));
  EXPECT_TRUE(torch::equal(batch.targets, golden.tensors.at("stack.labels")));
  for (const auto& [split, name] : {std::pair{Split::kTrain, "train"}, {Split::kTest, "test"}}) {
    const Files files = formula_files(split);
    Sha256 digest;
    digest.update(std::as_bytes(std::span(files.images.pixels)));
    digest.update(std::as_bytes(std::span(files.labels.labels)));
    EXPECT_EQ(digest.hex_digest(), golden.metadata.at("formula." + std::string(name) + "_sha256"));
  }
}

// The pixels of the first images, as torchvision's ToTensor sees them.
torch::Tensor raw_pixels(std::int64_t count) {
  const Files files = read_files(kRoot, Split::kTest);
  auto bytes = torch::empty({count, 1, 28, 28}, torch::kUInt8);
  std::copy_n(files.images.pixels.data(), bytes.numel(), bytes.mutable_data_ptr<std::uint8_t>());
  return bytes;
}

TEST(Dataset, NormalisesAsTorchvisionDoesToTheLastBitAndOnlyDividesBy255ByDefault) {
  const auto scaled = raw_pixels(200).to(torch::kFloat32).div(255);
  const auto mean = torch::tensor(0.1307, torch::kFloat32);
  const auto std = torch::tensor(0.3081, torch::kFloat32);
  const Dataset set(kRoot, Split::kTest, {.normalization = kMnistNormalization});
  EXPECT_TRUE(torch::equal(set.get_batch(range(0, 200)).inputs.only(), (scaled - mean) / std));
  EXPECT_EQ(kMnistNormalization.background(), ((torch::zeros({}) - mean) / std).item<float>());
  const Dataset divided(kRoot, Split::kTest);
  EXPECT_TRUE(torch::equal(divided.get_batch(range(0, 200)).inputs.only(), scaled));
  EXPECT_EQ(Normalization{}.background(), 0.0F);
  EXPECT_FALSE(std::signbit(Normalization{}.background())) << "a black pixel is not minus zero";
}

void expect_equal(const Batch& got, const Batch& wanted) {
  EXPECT_TRUE(torch::equal(got.inputs.only().cpu(), wanted.inputs.only()));
  EXPECT_TRUE(torch::equal(got.targets.cpu(), wanted.targets));
}

TEST(ResidentImages, GatherTheBatchesOfTheOnePass) {
  const Dataset set(kRoot, Split::kTest, {.normalization = kMnistNormalization});
  const ResidentImages resident(read_files(kRoot, Split::kTest), 500, kMnistNormalization,
                                torch::kCPU);
  for (const Indices& indices : {Indices{499, 0, 17, 17}, range(0, 500), Indices{}}) {
    expect_equal(resident.gather(indices), set.get_batch(indices));
  }
}

TEST(Dataset, LiesOnAGpu) {
  if (!torch::hasCUDA()) GTEST_SKIP() << "skipped: no GPU";
  const Dataset here(kRoot, Split::kTest, {kMnistNormalization});
  const Dataset there(kRoot, Split::kTest, {kMnistNormalization, 0, torch::kCUDA});
  EXPECT_TRUE(there.get_batch(Indices{3}).inputs.only().is_cuda());
  expect_equal(there.get_batch(range(0, 700)), here.get_batch(range(0, 700)));
  EXPECT_THROW(there.get_batch(Indices{10000}), c10::Error);
}

TEST(Dataset, MovesToAGpuUnlessItIsToStayInHostMemory) {
  if (!torch::hasCUDA()) GTEST_SKIP() << "skipped: no GPU";
  for (const bool stays : {false, true}) {
    Dataset set(kRoot, Split::kTest,
                {.normalization = kMnistNormalization, .in_host_memory = stays});
    const Batch before = set.get_batch(range(0, 9));
    EXPECT_TRUE(before.inputs.only().is_cpu());
    set.to(torch::kCUDA);
    const Batch after = set.get_batch(range(0, 9));
    EXPECT_EQ(after.inputs.only().is_cuda(), !stays);
    expect_equal(after, before);
  }
}

TEST(Dataset, GivesTheSamplesInTheOrderAskedForWithoutPositions) {
  const Batch some = train_set().get_batch(Indices{59999, 0, 0});
  EXPECT_FALSE(some.positions.defined()) << "of the loader";
  EXPECT_TRUE(torch::equal(some.targets, torch::tensor({8, 5, 5}, torch::kInt64)));
  EXPECT_TRUE(torch::equal(some.inputs.only()[1], some.inputs.only()[2]));
  EXPECT_FALSE(torch::equal(some.inputs.only()[0], some.inputs.only()[1]));
  EXPECT_TRUE(
      torch::equal(some.inputs.only()[1], train_set().get_batch(range(0, 1)).inputs.only()[0]));
  const Batch none = train_set().get_batch({});
  EXPECT_EQ(none.size(), 0);
  EXPECT_EQ(none.inputs.only().sizes(), (std::vector<std::int64_t>{0, 1, 28, 28}));
}

TEST(Dataset, LimitTakesTheFirstSamples) {
  Dataset set(kRoot, Split::kTest, {.limit = 3});
  set.to(torch::kCPU);
  EXPECT_EQ(set.size(), 3);
  const Batch batch = set.get_batch(range(0, 3));
  EXPECT_TRUE(batch.inputs.only().is_cpu());
  EXPECT_TRUE(torch::equal(batch.targets, torch::tensor({7, 2, 1}, torch::kInt64)));
  EXPECT_ERROR(set.get_batch(Indices{3}), c10::Error, "sample 3 of a data set of 3");
  EXPECT_ERROR(set.get_batch(Indices{-1}), c10::Error, "sample -1 of a data set of 3");
  EXPECT_EQ(Dataset(kRoot, Split::kTest, {.limit = 10000}).size(), 10000);
  for (const std::int64_t limit : {10001, -1}) {
    EXPECT_ERROR(Dataset(kRoot, Split::kTest, {.limit = limit}), UsageError,
                 "--limit-test: expected 0 (all) to 10000, got " + std::to_string(limit));
  }
  EXPECT_ERROR(Dataset("/nonexistent", Split::kTrain), DataError,
               "/nonexistent/train-images-idx3-ubyte");
}

}  // namespace
}  // namespace mnist
