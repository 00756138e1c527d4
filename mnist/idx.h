// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mnist {

// IDX, the file format of MNIST and of the sets made to replace it.
//
//     bytes   content
//     2       zero
//     1       type of an item: 0x08 for bytes, the only one that image sets use
//     1       number of dimensions: 3 for images, 1 for labels
//     4 each  the sizes, most significant byte first
//     rest    the items, last dimension fastest
//
// The first four bytes are often read as one number: 0x00000803 and 0x00000801.
//
// The parsers check everything before they return: the magic number, that no size is zero and
// their product fits, and that the file ends exactly where the items end. Otherwise they throw a
// DataError (exit code 3) that begins with `name`.
//
// Source: "THE MNIST DATABASE of handwritten digits", section "FILE FORMATS".

struct IdxImages {
  std::int64_t count = 0;
  std::int64_t rows = 0;             // of one image
  std::int64_t columns = 0;          // of one image
  std::vector<std::uint8_t> pixels;  // [count, rows, columns], row by row; 0 is background
};

struct IdxLabels {
  std::vector<std::uint8_t> labels;  // [count], each 0 to 9
};

// Parse a whole file. Move the bytes in: the result is made of the same memory.
// A label above 9 is refused too; items count from 0 in its message.
IdxImages parse_idx_images(std::vector<std::uint8_t> bytes, const std::string& name);
IdxLabels parse_idx_labels(std::vector<std::uint8_t> bytes, const std::string& name);

}  // namespace mnist
