// SPDX-License-Identifier: Apache-2.0
#include "mnist/files.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "ladder/core/error.h"
#include "mnist/gzip_file.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_files.h"
#include "tests/support/temporary_folder.h"

namespace mnist {
namespace {

using namespace ladder;

const std::string kMnist = std::string(LADDER_SOURCE_DIR) + "/data/mnist";

void write(const TemporaryFolder& folder, const std::string& name, const Bytes& bytes) {
  folder.write(name, std::as_bytes(std::span(bytes)));
}

void write_train(const TemporaryFolder& folder, const Bytes& images, const Bytes& labels) {
  write(folder, "train-images-idx3-ubyte", images);
  write(folder, "train-labels-idx1-ubyte", labels);
}

// The file as it is after gunzip.
void write_plain(const TemporaryFolder& folder, const std::string& name) {
  write(folder, name, read_gzip_or_plain(kMnist + "/" + name + ".gz", 50'000'000).bytes);
}

TEST(Files, TheTrainingSetIsKnown) {
  const auto files = read_files(kMnist, Split::kTrain);
  EXPECT_TRUE(files.known);
  EXPECT_EQ(files.description, "MNIST train, 60000 images");
  EXPECT_EQ(files.images.count, 60'000);
  EXPECT_EQ(files.images.pixels.size(), 47'040'000U);
  std::array<int, 10> counts{};
  for (const auto label : files.labels.labels) ++counts[label];
  EXPECT_EQ(counts, (std::array{5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949}));
}

TEST(Files, TheTestSetIsKnown) {
  const auto files = read_files(kMnist, Split::kTest);
  EXPECT_TRUE(files.known);
  EXPECT_EQ(files.description, "MNIST test, 10000 images");
  EXPECT_EQ(files.images.count, 10'000);
  std::array<int, 10> counts{};
  for (const auto label : files.labels.labels) ++counts[label];
  EXPECT_EQ(counts, (std::array{980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009}));
}

TEST(Files, PlainFilesAreKnownToo) {
  const TemporaryFolder folder;
  for (const std::string prefix : {"train", "t10k"}) {
    write_plain(folder, prefix + "-images-idx3-ubyte");
    write_plain(folder, prefix + "-labels-idx1-ubyte");
  }
  EXPECT_TRUE(read_files(folder.path(), Split::kTrain).known);
  EXPECT_TRUE(read_files(folder.path(), Split::kTest).known);
}

TEST(Files, TheTestSetUnderTheNamesOfTheTrainingSetIsUnknown) {
  const TemporaryFolder folder;
  const auto link = [&folder](const std::string& from, const std::string& to) {
    std::filesystem::create_symlink(kMnist + "/" + from, folder.file(to));
  };
  link("t10k-images-idx3-ubyte.gz", "train-images-idx3-ubyte.gz");
  link("t10k-labels-idx1-ubyte.gz", "train-labels-idx1-ubyte.gz");
  const auto files = read_files(folder.path(), Split::kTrain);
  EXPECT_FALSE(files.known);
  EXPECT_EQ(files.description, "unknown set (sha256 of images 8d422c7b0a1c…)");
}

TEST(Files, KnownImagesWithOtherLabelsAreUnknown) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink(kMnist + "/t10k-images-idx3-ubyte.gz",
                                  folder.file("t10k-images-idx3-ubyte.gz"));
  write(folder, "t10k-labels-idx1-ubyte", idx_labels_file(Bytes(10'000)));
  const auto files = read_files(folder.path(), Split::kTest);
  EXPECT_FALSE(files.known);
  EXPECT_EQ(files.description, "unknown set (sha256 of labels fce4e2f69df0…)");
}

TEST(Files, AnotherSetOfTheSameFormatIsReadAndDescribed) {
  const TemporaryFolder folder;
  write_train(folder, idx_images_file(2, 28, 28), idx_labels_file({7, 3}));
  const auto files = read_files(folder.path(), Split::kTrain);
  EXPECT_FALSE(files.known);
  EXPECT_EQ(files.description, "unknown set (sha256 of images f53a5c8908b0…)");
  EXPECT_EQ(files.images.count, 2);
  EXPECT_EQ(files.labels.labels, (Bytes{7, 3}));
}

TEST(Files, TheCompressedFileIsTakenIfBothAreThere) {
  const TemporaryFolder folder;
  write_train(folder, idx_images_file(1, 28, 28), idx_labels_file({1}));
  write(folder, "train-labels-idx1-ubyte.gz", gzip(idx_labels_file({2})));
  EXPECT_EQ(read_files(folder.path(), Split::kTrain).labels.labels, Bytes{2});
}

TEST(Files, AMissingFileNamesWhatWasLookedFor) {
  const TemporaryFolder folder;
  write(folder, "t10k-images-idx3-ubyte", idx_images_file(1, 28, 28));
  EXPECT_ERROR(
      read_files(folder.path(), Split::kTest), DataError,
      folder.file("t10k-labels-idx1-ubyte.gz") +
          ": expected a readable file, got none; hint: neither t10k-labels-idx1-ubyte.gz nor "
          "t10k-labels-idx1-ubyte is there; pass --data-root FOLDER (the "
          "repository has the files in data/mnist)");
}

TEST(Files, AMissingFolderIsAMissingFile) {
  EXPECT_ERROR(read_files("/nowhere", Split::kTrain), DataError,
               "/nowhere/train-images-idx3-ubyte.gz: expected a readable file, got none");
}

TEST(Files, ADamagedFileIsNamed) {
  const TemporaryFolder folder;
  write_train(folder, Bytes(20), idx_labels_file({1}));
  EXPECT_ERROR(read_files(folder.path(), Split::kTrain), DataError,
               folder.file("train-images-idx3-ubyte") + ": expected magic number 0x00000803");
}

TEST(Files, ImagesOfAnotherSizeAreRefused) {
  const TemporaryFolder folder;
  write_train(folder, idx_images_file(1, 28, 32), idx_labels_file({1}));
  EXPECT_ERROR(
      read_files(folder.path(), Split::kTrain), DataError,
      folder.file("train-images-idx3-ubyte") + ": expected images of 28 x 28 pixels, got 28 x 32");
}

TEST(Files, CountsThatDifferAreRefused) {
  const TemporaryFolder folder;
  write_train(folder, idx_images_file(2, 28, 28), idx_labels_file({1, 2, 3}));
  EXPECT_ERROR(read_files(folder.path(), Split::kTrain), DataError,
               folder.file("train-labels-idx1-ubyte") +
                   ": expected 2 labels, one per image, got 3; hint: take both files from the "
                   "same set");
}

TEST(Files, ALabelFileTooLargeToBeOneIsRefused) {
  const TemporaryFolder folder;
  write_train(folder, idx_images_file(1, 28, 28), Bytes((1U << 20) + 1));
  EXPECT_ERROR(read_files(folder.path(), Split::kTrain), DataError,
               folder.file("train-labels-idx1-ubyte") +
                   ": expected at most 1048576 bytes of content, got more");
}

}  // namespace
}  // namespace mnist
