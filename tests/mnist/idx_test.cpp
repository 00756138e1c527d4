// SPDX-License-Identifier: Apache-2.0
#include "mnist/idx.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_files.h"

namespace mnist {
namespace {

using namespace ladder;

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

}  // namespace
}  // namespace mnist
