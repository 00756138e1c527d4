// SPDX-License-Identifier: Apache-2.0
#include "ladder/data/random_shift.h"

#include <ATen/TensorIndexing.h>
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "ladder/core/device.h"
#include "ladder/core/error.h"
#include "ladder/core/philox.h"
#include "ladder/core/tensor_form.h"

namespace ladder {
namespace {

// Keeps the stream of shifts apart from those of the dropout layers, which count from 1.
constexpr std::uint32_t kShiftStream = 0xA0000000;

}  // namespace

RandomShift::RandomShift(RandomShiftOptions options) : options_(std::move(options)) {
  require_at_least("RandomShift max_pixels", options_.max_pixels, 0, "0 shifts nothing");
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

void RandomShift::apply(Inputs& inputs, std::span<const std::int64_t> indices,
                        std::int64_t epoch) const {
  if (options_.input.empty() && inputs.size() != 1) {
    throw UsageError::malformed("RandomShift input", "the name of the images",
                                fmt::format("no name for {} inputs", inputs.size()),
                                "set RandomShiftOptions::input to the name of the images");
  }
  const std::string& name = options_.input.empty() ? inputs.begin()->first : options_.input;
  const auto& images = inputs.at(name);
  if (images.dim() != 4 || images.size(0) != std::ssize(indices)) {
    throw UsageError::malformed("RandomShift", fmt::format("images [{}, C, H, W]", indices.size()),
                                TensorForm::of_values(images).text(),
                                "set RandomShiftOptions::input to the name of the images");
  }
  const bool in_one_pass = images.is_cpu() && images.scalar_type() == torch::kFloat32;
  inputs.set(name, in_one_pass ? shifted(images, indices, epoch)
                               : shifted_by_tensors(images, indices, epoch));
}

torch::Tensor RandomShift::shifted(const torch::Tensor& images,
                                   std::span<const std::int64_t> indices,
                                   std::int64_t epoch) const {
  const std::int64_t channels = images.size(1);
  const std::int64_t rows = images.size(2);
  const std::int64_t columns = images.size(3);
  const auto source = images.contiguous();
  auto result = torch::empty(images.sizes(), torch::kFloat32);
  auto* out = result.mutable_data_ptr<float>();
  const auto* in = source.const_data_ptr<float>();
  for (const std::int64_t index : indices) {
    const auto [down, right] = offset(epoch, index);
    for (std::int64_t channel = 0; channel < channels; ++channel, in += rows * columns) {
      for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t column = 0; column < columns; ++column) {
          const std::int64_t from_row = row - down;
          const std::int64_t from_column = column - right;
          const bool inside =
              from_row >= 0 && from_row < rows && from_column >= 0 && from_column < columns;
          *out++ = inside ? in[from_row * columns + from_column] : options_.fill;
        }
      }
    }
  }
  return result;
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
    const auto moved = send_to_device(torch::tensor(offsets, torch::kInt64), images.device());
    return torch::arange(margin, margin + size, images.device()) - moved.unsqueeze(1);
  };
  // Indexing [image, :, row, column] puts the channels last: [N, H, W, C].
  const auto image = torch::arange(images.size(0), images.device()).view({-1, 1, 1});
  return padded
      .index({image, at::indexing::Slice(), sources(down, images.size(2)).unsqueeze(2),
              sources(right, images.size(3)).unsqueeze(1)})
      .permute({0, 3, 1, 2})
      .contiguous();
}

}  // namespace ladder
