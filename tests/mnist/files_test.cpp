// SPDX-License-Identifier: Apache-2.0
#include "mnist/files.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/io/sha256.h"
#include "mnist/hparams_file.h"
#include "mnist/idx.h"
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

// --- One file, compressed or not ---

constexpr std::size_t kLimit = 1'000'000;

// Bytes that do not compress.
Bytes noise(std::size_t size) {
  Bytes bytes(size);
  std::uint32_t state = 1;
  for (auto& byte : bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::uint8_t>(state >> 24);
  }
  return bytes;
}

class OneFile : public testing::Test {
 protected:
  FileBytes read(const Bytes& bytes, std::size_t size_limit = kLimit) const {
    return read_gzip_or_plain(folder_.write("x.gz", std::as_bytes(std::span(bytes))), size_limit);
  }
  // The error names the file.
  void expect_refused(const Bytes& bytes, const std::string& problem,
                      std::size_t size_limit = kLimit) const {
    EXPECT_ERROR(read(bytes, size_limit), DataError, folder_.file("x.gz") + ": " + problem);
  }

  TemporaryFolder folder_;
};

TEST_F(OneFile, IsInflatedByItsContentNotByItsName) {
  for (const std::size_t size : {0U, 1U, 65536U, 70000U, 999'999U}) {
    for (const Bytes& content : {noise(size), Bytes(size)}) {
      const Bytes compressed = gzip(content);
      EXPECT_EQ(read(compressed).bytes, content) << size << " bytes";
      EXPECT_EQ(read(compressed).file_sha256, sha256_hex(std::as_bytes(std::span(compressed))));
    }
    EXPECT_EQ(read(noise(size)).bytes, noise(size)) << size << " plain bytes";
  }
}

TEST_F(OneFile, HoldsAtMostTheLimitOnceInflated) {
  EXPECT_EQ(read(gzip(noise(5000)), 5000).bytes, noise(5000));
  EXPECT_EQ(read(noise(5000), 5000).bytes, noise(5000));
  const std::string problem = "expected at most 5000 bytes of content, got more; hint: ";
  expect_refused(gzip(noise(5001)), problem, 5000);
  expect_refused(noise(5001), problem, 5000);
  expect_refused(noise(100'000), problem, 5000);          // before it is read
  const Bytes bomb = gzip(Bytes(std::size_t{64} << 20));  // 64 MiB of zeros in 64 kB
  ASSERT_LT(bomb.size(), 70'000U);
  expect_refused(bomb, "expected at most 1000000 bytes of content, got more");
}

TEST_F(OneFile, EveryTruncationOfGzipIsRefused) {
  const Bytes whole = gzip(noise(300));
  for (std::size_t size = 2; size < whole.size(); ++size) {
    expect_refused(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)),
                   "expected ");
  }
  // A part of a large file, such as a download that was interrupted.
  const Bytes large = gzip(noise(200'000));
  expect_refused(Bytes(large.begin(), large.begin() + 100'000),
                 "expected a complete gzip stream, got its end after 100000 bytes; hint: fetch");
}

TEST_F(OneFile, ADamagedChecksumOrLengthIsRefused) {
  Bytes checksum = gzip(noise(300));
  checksum[checksum.size() - 8] ^= 1;
  expect_refused(checksum, "expected an intact gzip stream, got incorrect data check near byte ");
  for (const int damage : {1, 4, 0x80}) {  // 300 is 0x12c: one more, four and 128 less
    Bytes length = gzip(noise(300));
    length[length.size() - 4] ^= static_cast<std::uint8_t>(damage);
    expect_refused(length, "expected an intact gzip stream, got ");
  }
  Bytes gigabytes = gzip(noise(300));
  gigabytes.back() = 0xff;
  expect_refused(gigabytes, "expected an intact gzip stream, got incorrect length check");
}

TEST_F(OneFile, BytesAfterTheGzipStreamAreRefused) {
  const Bytes whole = gzip(noise(300));
  for (const Bytes& more : {bytes_of("more"), Bytes(4), gzip(noise(10)), gzip(noise(400))}) {
    Bytes bytes = whole;
    bytes.insert(bytes.end(), more.begin(), more.end());
    expect_refused(bytes, "expected ");
  }
  Bytes bytes = whole;
  bytes.insert(bytes.end(), 4, 0x7f);
  expect_refused(bytes, "expected one gzip stream of " + std::to_string(whole.size()) +
                            " bytes, got " + std::to_string(bytes.size()) + " bytes");
}

TEST_F(OneFile, ThatCannotBeReadIsNamed) {
  const auto expect_got = [](const std::string& path, const std::string& got) {
    EXPECT_ERROR(read_gzip_or_plain(path, kLimit), DataError,
                 path + ": expected a readable file, got " + got);
  };
  expect_got(folder_.file("x"), "none; hint: check the path: ls " + folder_.path());
  expect_got(folder_.path(), "a folder");
  expect_got("/dev/zero", "a device; hint: name a file");
}

// --- The two files of a split ---

void expect_known(Split split, const std::string& description, const std::array<int, 10>& counts) {
  const auto files = read_files(kMnist, split);
  EXPECT_TRUE(files.known);
  EXPECT_EQ(files.description, description);
  EXPECT_EQ(files.images.count, std::ssize(files.labels.labels));
  EXPECT_EQ(files.images.pixels.size(), files.labels.labels.size() * 784);
  std::array<int, 10> got{};
  for (const auto label : files.labels.labels) ++got[label];
  EXPECT_EQ(got, counts);
}

TEST(Files, TheTwoSetsAreKnown) {
  expect_known(Split::kTrain, "MNIST train, 60000 images",
               {5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949});
  expect_known(Split::kTest, "MNIST test, 10000 images",
               {980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009});
}

TEST(Files, PlainFilesAreKnownToo) {
  const TemporaryFolder folder;
  write_plain(folder, "t10k-images-idx3-ubyte");
  write_plain(folder, "t10k-labels-idx1-ubyte");
  EXPECT_TRUE(read_files(folder.path(), Split::kTest).known);
}

void expect_unknown(const TemporaryFolder& folder, Split split, const std::string& sha256) {
  const auto files = read_files(folder.path(), split);
  EXPECT_FALSE(files.known);
  EXPECT_EQ(files.description, "unknown set (sha256 of " + sha256 + "…)");
}

TEST(Files, OtherSetsOfTheSameFormatAreUnknown) {
  const TemporaryFolder folder;
  const auto link = [&folder](const std::string& from, const std::string& to) {
    std::filesystem::create_symlink(kMnist + "/t10k-" + from, folder.file(to + from));
  };
  link("images-idx3-ubyte.gz", "train-");
  link("labels-idx1-ubyte.gz", "train-");
  expect_unknown(folder, Split::kTrain, "images 8d422c7b0a1c…, of labels f7ae60f92e00");
  link("images-idx3-ubyte.gz", "t10k-");
  write(folder, "t10k-labels-idx1-ubyte", idx_labels_file(Bytes(10'000)));
  expect_unknown(folder, Split::kTest, "images 8d422c7b0a1c…, of labels fce4e2f69df0");
  const TemporaryFolder own;
  write_train(own, idx_images_file(2, 28, 28), idx_labels_file({7, 3}));
  expect_unknown(own, Split::kTrain, "images f53a5c8908b0…, of labels 6174a6c654c8");
  EXPECT_EQ(read_files(own.path(), Split::kTrain).images.count, 2);
  EXPECT_EQ(read_files(own.path(), Split::kTrain).labels.labels, (Bytes{7, 3}));
}

TEST(Files, TheCompressedFileIsTakenIfBothAreThere) {
  const TemporaryFolder folder;
  write_train(folder, idx_images_file(1, 28, 28), idx_labels_file({1}));
  write(folder, "train-labels-idx1-ubyte.gz", gzip(idx_labels_file({2})));
  EXPECT_EQ(read_files(folder.path(), Split::kTrain).labels.labels, Bytes{2});
}

// torchvision.datasets.MNIST(root), and the names of other copies beside folders of the usual ones.
TEST(Files, AreFoundUnderOtherNamesToo) {
  for (const std::string place : {"", "raw/", "MNIST/raw/"}) {
    for (const char separator : {'-', '.'}) {
      const TemporaryFolder folder;
      std::filesystem::create_directories(folder.file(place + "train-images-idx3-ubyte/x"));
      const auto name = [&](const char* kind) { return place + "train-" + kind + separator; };
      const bool plain = separator == '.';
      write(folder, name("images") + (plain ? "idx3-ubyte" : "idx3-ubyte.gz"),
            plain ? idx_images_file(1, 28, 28) : gzip(idx_images_file(1, 28, 28)));
      write(folder, name("labels") + "idx1-ubyte", idx_labels_file({3}));
      EXPECT_EQ(read_files(folder.path(), Split::kTrain).labels.labels, Bytes{3});
    }
  }
}

TEST(Files, AMissingFileNamesWhatWasLookedFor) {
  const TemporaryFolder folder;
  write(folder, "t10k-images-idx3-ubyte", idx_images_file(1, 28, 28));
  const std::string missing = ": expected a readable file, got none; hint: neither ";
  EXPECT_ERROR(
      read_files(folder.path(), Split::kTest), DataError,
      folder.file("t10k-labels-idx1-ubyte.gz") + missing + "there nor in raw/ or MNIST/raw/",
      "pass --data-root FOLDER");
  EXPECT_ERROR(read_files("/nowhere", Split::kTrain), DataError,
               "/nowhere/train-images-idx3-ubyte.gz" + missing);
}

TEST(Files, ThatDoNotFitAreRefusedByName) {
  const auto expect_refused = [](const Bytes& images, const Bytes& labels,
                                 const std::string& text) {
    const TemporaryFolder folder;
    write_train(folder, images, labels);
    EXPECT_ERROR(read_files(folder.path(), Split::kTrain), DataError, folder.file("train-") + text);
  };
  const Bytes image = idx_images_file(1, 28, 28);
  const Bytes label = idx_labels_file({1});
  expect_refused(Bytes(20), label, "images-idx3-ubyte: expected magic number 0x00000803");
  expect_refused(idx_images_file(1, 28, 32), label,
                 "images-idx3-ubyte: expected images of 28 x 28 pixels, got 28 x 32");
  expect_refused(image, idx_labels_file({1, 2, 3}),
                 "labels-idx1-ubyte: expected 1 labels, one per image, got 3; hint: take both");
  expect_refused(image, Bytes((1U << 20) + 1),
                 "labels-idx1-ubyte: expected at most 1048576 bytes of content, got more");
}

// --- The content of a file ---

TEST(IdxImages, AreReadInOrder) {
  const auto images = parse_idx_images(idx_file(0x803, {2, 1, 3}, {1, 2, 3, 4, 5, 6}), "x");
  EXPECT_EQ(images.count, 2);
  EXPECT_EQ(images.rows, 1);
  EXPECT_EQ(images.columns, 3);
  EXPECT_EQ(images.pixels, (Bytes{1, 2, 3, 4, 5, 6}));
}

TEST(IdxImages, StayInTheMemoryTheyCameIn) {
  Bytes file = idx_images_file(3, 28, 28);
  const std::uint8_t* memory = file.data();
  EXPECT_EQ(parse_idx_images(std::move(file), "x").pixels.data(), memory);
}

TEST(IdxLabels, AreReadInOrder) {
  const Bytes labels = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  EXPECT_EQ(parse_idx_labels(idx_labels_file(labels), "x").labels, labels);
}

// Without its last byte, or with more.
Bytes resized(Bytes file, int by) {
  file.resize(static_cast<std::size_t>(std::ssize(file) + by));
  return file;
}

// Files, and the error of each.
using Refusals = std::vector<std::pair<Bytes, std::string>>;

TEST(IdxImages, RefuseEveryOtherFile) {
  const Bytes images = idx_images_file(2, 3, 4);
  for (int size = 0; size < 16; ++size) {
    EXPECT_ERROR(parse_idx_images(resized(images, size - 40), "x"), DataError,
                 "x: expected a header of 16 bytes, got a file of " + std::to_string(size) + " by");
  }
  const Refusals refusals = {
      {idx_labels_file(Bytes(100)), "magic number 0x00000803 (images), got 0x00000801 (labels)"},
      {idx_file(0xd03, {1, 2, 2}, Bytes(16)), "magic number 0x00000803 (images), got 0x00000d03"},
      {idx_file(0x803, {2, 0, 3}, {}), "sizes above 0, got 2 x 0 x 3"},
      // 2^22 · 2^21 · 2^21 is 2^64, which is 0 in 64 bits: exactly the bytes that are there.
      {idx_file(0x803, {1U << 22, 1U << 21, 1U << 21}, {}), "sizes that a file can hold, got "},
      // 6700417 · 1114129 · 2471055 is 2^64 - 1; the header's 16 bytes make it 15.
      {idx_file(0x803, {6700417, 1114129, 2471055}, {}), "sizes that a file can hold, got 6700417"},
      {idx_file(0x803, {UINT32_MAX, UINT32_MAX, 1}, {}),
       "18446744065119617041 bytes for 4294967295 x 4294967295 x 1, got 16"},
      {resized(images, -1), "40 bytes for 2 x 3 x 4, got 39 (truncated, 1 missing)"},
      {resized(images, 2), "40 bytes for 2 x 3 x 4, got 42 (2 after the last item)"}};
  for (const auto& [file, text] : refusals) {
    EXPECT_ERROR(parse_idx_images(file, "x"), DataError, "x: expected " + text);
  }
}

TEST(IdxLabels, RefuseEveryOtherFile) {
  const Refusals refusals = {
      {idx_images_file(1, 2, 2), "magic number 0x00000801 (labels), got 0x00000803 (images)"},
      {Bytes(7), "a header of 8 bytes, got a file of 7 bytes"},
      {idx_labels_file({}), "sizes above 0, got 0"},
      {idx_file(0x801, {4}, {1, 2, 3}), "12 bytes for 4, got 11 (truncated, 1 missing)"},
      {idx_file(0x801, {2}, {1, 2, 3}), "10 bytes for 2, got 11 (1 after the last item)"},
      {idx_labels_file({0, 9, 10, 255}), "labels 0 to 9, got 10 at item 2"}};
  for (const auto& [file, text] : refusals) {
    EXPECT_ERROR(parse_idx_labels(file, "x"), DataError, "x: expected " + text);
  }
}

// --- Files of hyper-parameters ---

class Hparams : public testing::Test {
 protected:
  std::vector<std::pair<std::string, std::string>> read(const std::string& text) const {
    return read_hparams(folder_.write("h.yaml", text));
  }

  TemporaryFolder folder_;
};

TEST_F(Hparams, ArePairsInTheOrderOfTheFileWithValuesAsTheyWereWritten) {
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"lr", "1e-3"},        {"batch-size", "64"}, {"epochs", "3"},
      {"recipe", "convnet"}, {"sync-bn", "true"},  {"seed", "007"},
      {"gpu", "0,1"},        {"name", "no"},       {"save", "a: b.safetensors"}};
  EXPECT_EQ(read("# hyper-parameters\nlr: 1e-3\nbatch_size: 64\nepochs: '3'\n"
                 "recipe: \"convnet\"  # the second\nsync-bn: true\n"
                 "seed: 007\ngpu: 0,1\nname: no\nsave: \"a: b.safetensors\"\n"),
            expected);
}

TEST_F(Hparams, WhatIsNoFlatMapOfFlagsIsRefusedWithItsLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"lr: 1\nmodel:\n  width: 3\n", ":2: model: expected one value, got 'a map'; hint: write"},
      {"gpus: [0, 1]\n", ":1: gpus: expected one value, got 'a li"},
      {"- lr\n", ":1: not a map of names to values"},
      {"--lr: 1\n", ":1: --lr: expected the name of a flag without its dashes"},
      {"lr: |\n  1\n  2\n", ":1: lr: expected a value on one line"},
      {"lr:\n", ":1: lr: expected a value, not set; hint: remove the line"},
      {"lr: ''\n", ":1: lr: expected a value, not set; hint: remove the line"},
      {"lr: 1\nlr: 2\n", ":2: 'lr' is set again, after line 1"},
      {"batch_size: 1\nbatch-size: 2\n", ":2: batch-size: set twice, once with - and once with _"}};
  for (const auto& [text, message] : cases) {
    EXPECT_ERROR(read(text), UsageError, folder_.file("h.yaml") + message);
  }
}

}  // namespace
}  // namespace mnist
