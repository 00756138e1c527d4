// SPDX-License-Identifier: Apache-2.0
#include "mnist/idx.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

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

TEST(IdxImages, RefuseAFileShorterThanTheHeader) {
  for (std::size_t size = 0; size < 16; ++size) {
    Bytes file = idx_images_file(1, 2, 2);
    file.resize(size);
    EXPECT_ERROR(parse_idx_images(file, "x"), DataError,
                 "x: expected a header of 16 bytes, got a file of " + std::to_string(size) +
                     " bytes; hint: fetch the file again");
  }
}

TEST(IdxImages, RefuseLabels) {
  EXPECT_ERROR(parse_idx_images(idx_labels_file(Bytes(100)), "x"), DataError,
               "x: expected magic number 0x00000803 (images), got 0x00000801 (labels); hint: "
               "images and labels were exchanged");
}

TEST(IdxImages, RefuseAnotherTypeOfItem) {
  EXPECT_ERROR(parse_idx_images(idx_file(0xd03, {1, 2, 2}, Bytes(16)), "x"), DataError,
               "x: expected magic number 0x00000803 (images), got 0x00000d03; hint: this is no "
               "IDX file of bytes");
}

TEST(IdxImages, RefuseASizeOfZero) {
  EXPECT_ERROR(parse_idx_images(idx_file(0x803, {2, 0, 3}, {}), "x"), DataError,
               "x: expected sizes above 0, got 2 x 0 x 3");
}

TEST(IdxImages, RefuseSizesWhoseProductOverflows) {
  // 2^22 · 2^21 · 2^21 is 2^64, which is 0 in 64 bits: exactly the bytes that are there.
  EXPECT_ERROR(parse_idx_images(idx_file(0x803, {1U << 22, 1U << 21, 1U << 21}, {}), "x"),
               DataError,
               "x: expected sizes that a file can hold, got 4194304 x 2097152 x 2097152");
}

TEST(IdxImages, RefuseASumWithTheHeaderThatOverflows) {
  // 6700417 · 1114129 · 2471055 is 2^64 - 1; the header's 16 bytes make it 15.
  EXPECT_ERROR(parse_idx_images(idx_file(0x803, {6700417, 1114129, 2471055}, {}), "x"), DataError,
               "x: expected sizes that a file can hold, got 6700417 x 1114129 x 2471055");
}

TEST(IdxImages, RefuseTheLargestSizesThatFit64Bits) {
  EXPECT_ERROR(parse_idx_images(idx_file(0x803, {UINT32_MAX, UINT32_MAX, 1}, {}), "x"), DataError,
               "x: expected 18446744065119617041 bytes for 4294967295 x 4294967295 x 1, got 16 "
               "(truncated, 18446744065119617025 missing)");
}

TEST(IdxImages, RefuseATruncatedFile) {
  Bytes file = idx_images_file(2, 3, 4);
  file.pop_back();
  EXPECT_ERROR(parse_idx_images(file, "x"), DataError,
               "x: expected 40 bytes for 2 x 3 x 4, got 39 (truncated, 1 missing)");
}

TEST(IdxImages, RefuseTrailingBytes) {
  Bytes file = idx_images_file(2, 3, 4);
  file.resize(file.size() + 2);
  EXPECT_ERROR(parse_idx_images(file, "x"), DataError,
               "x: expected 40 bytes for 2 x 3 x 4, got 42 (2 after the last item)");
}

TEST(IdxLabels, AreReadInOrder) {
  const Bytes labels = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  EXPECT_EQ(parse_idx_labels(idx_labels_file(labels), "x").labels, labels);
}

TEST(IdxLabels, RefuseImages) {
  EXPECT_ERROR(parse_idx_labels(idx_images_file(1, 2, 2), "x"), DataError,
               "x: expected magic number 0x00000801 (labels), got 0x00000803 (images)");
}

TEST(IdxLabels, RefuseAFileShorterThanTheHeader) {
  EXPECT_ERROR(parse_idx_labels(Bytes(7), "x"), DataError,
               "x: expected a header of 8 bytes, got a file of 7 bytes");
}

TEST(IdxLabels, RefuseAnEmptySet) {
  EXPECT_ERROR(parse_idx_labels(idx_labels_file({}), "x"), DataError,
               "x: expected sizes above 0, got 0");
}

TEST(IdxLabels, RefuseATruncatedFile) {
  EXPECT_ERROR(parse_idx_labels(idx_file(0x801, {4}, {1, 2, 3}), "x"), DataError,
               "x: expected 12 bytes for 4, got 11 (truncated, 1 missing)");
}

TEST(IdxLabels, RefuseTrailingBytes) {
  EXPECT_ERROR(parse_idx_labels(idx_file(0x801, {2}, {1, 2, 3}), "x"), DataError,
               "x: expected 10 bytes for 2, got 11 (1 after the last item)");
}

TEST(IdxLabels, NameTheFirstLabelAboveNine) {
  EXPECT_ERROR(parse_idx_labels(idx_labels_file({0, 9, 10, 255}), "x"), DataError,
               "x: expected labels 0 to 9, got 10 at item 2");
}

}  // namespace
}  // namespace mnist
