// SPDX-License-Identifier: Apache-2.0
#include "ladder/data/augment.h"

#include <torch/types.h>

#include <algorithm>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/core/philox.h"

namespace ladder {
namespace {

// Keeps the stream of shifts apart from those of the dropout layers, which count from 1.
constexpr std::uint32_t kShiftStream = 0xA0000000;

}  // namespace

RandomShift::RandomShift(RandomShiftOptions options) : options_(options) {
  if (options.max_pixels < 0) {
    throw UsageError::out_of_range("RandomShift max_pixels", options.max_pixels, "a number >= 0");
  }
}

RandomShift::Offset RandomShift::offset(std::int64_t epoch, std::int64_t index) const {
  const auto words = philox4x32(
      {static_cast<std::uint32_t>(epoch), static_cast<std::uint32_t>(index), kShiftStream, 0},
      options_.seed);
  const auto range = static_cast<std::uint64_t>(2 * options_.max_pixels + 1);
  const auto draw = [&](std::uint32_t word) {
    return static_cast<std::int64_t>((word * range) >> 32) - options_.max_pixels;
  };
  return {draw(words[0]), draw(words[1])};
}

void RandomShift::apply(torch::Tensor& images, std::span<const std::int64_t> indices,
                        std::int64_t epoch) const {
  if (!images.is_cpu()) {
    images = shifted_by_tensors(images, indices, epoch);
    return;
  }
  const std::int64_t rows = images.size(2);
  const std::int64_t columns = images.size(3);
  const auto source = images.clone();
  auto* out = images.mutable_data_ptr<float>();
  const auto* in = source.const_data_ptr<float>();
  for (const std::int64_t index : indices) {
    const auto [down, right] = offset(epoch, index);
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t column = 0; column < columns; ++column) {
        const std::int64_t from_row = row - down;
        const std::int64_t from_column = column - right;
        const bool inside =
            from_row >= 0 && from_row < rows && from_column >= 0 && from_column < columns;
        *out++ = inside ? in[from_row * columns + from_column] : options_.fill;
      }
    }
    in += rows * columns;
  }
}

torch::Tensor RandomShift::shifted_by_tensors(const torch::Tensor& images,
                                              std::span<const std::int64_t> indices,
                                              std::int64_t epoch) const {
  std::vector<std::int64_t> down;
  std::vector<std::int64_t> right;
  for (const std::int64_t index : indices) {
    const Offset moved = offset(epoch, index);
    down.push_back(moved.down);
    right.push_back(moved.right);
  }
  const std::int64_t margin = options_.max_pixels;
  const auto padded =
      torch::constant_pad_nd(images, {margin, margin, margin, margin}, options_.fill);
  // The row or column of `padded` that each row or column of an image comes from: [N, size].
  const auto sources = [&](const std::vector<std::int64_t>& offsets, std::int64_t size) {
    return (torch::arange(margin, margin + size) -
            torch::tensor(offsets, torch::kInt64).unsqueeze(1))
        .to(images.device(), /*non_blocking=*/true);
  };
  const auto image = torch::arange(images.size(0), images.device()).view({-1, 1, 1});
  return padded.squeeze(1)
      .index({image, sources(down, images.size(2)).unsqueeze(2),
              sources(right, images.size(3)).unsqueeze(1)})
      .unsqueeze(1);
}

}  // namespace ladder
