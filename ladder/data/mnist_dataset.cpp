// SPDX-License-Identifier: Apache-2.0
#include "ladder/data/mnist_dataset.h"

#include <fmt/core.h>
#include <torch/types.h>

#include "ladder/core/error.h"

namespace ladder {
namespace {

constexpr std::int64_t kSide = 28;
constexpr std::int64_t kPixels = kSide * kSide;

std::array<float, 256> pixel_table(const Normalization& normalization) {
  const auto mean = static_cast<float>(normalization.mean);
  const auto std = static_cast<float>(normalization.std);
  std::array<float, 256> table{};
  for (std::size_t pixel = 0; pixel < table.size(); ++pixel) {
    table[pixel] = (static_cast<float>(pixel) / 255.0F - mean) / std;
  }
  return table;
}

std::int64_t limited(std::int64_t limit, std::int64_t count) {
  if (limit < 0 || limit > count) {
    throw UsageError::out_of_range("limit of the data set", static_cast<double>(limit),
                                   fmt::format("0 (all) to {}", count));
  }
  return limit == 0 ? count : limit;
}

}  // namespace

MnistDataset::MnistDataset(const std::string& root, Split split, MnistOptions options)
    : files_(read_mnist_files(root, split)),
      size_(limited(options.limit, files_.images.count)),
      table_(pixel_table(options.normalization)) {}

Batch MnistDataset::get_batch(std::span<const std::int64_t> indices) const {
  const auto count = static_cast<std::int64_t>(indices.size());
  Batch batch{.images = torch::empty({count, 1, kSide, kSide}),
              .labels = torch::empty({count}, torch::kInt64)};
  auto* image = batch.images.mutable_data_ptr<float>();
  auto* label = batch.labels.mutable_data_ptr<std::int64_t>();
  for (const std::int64_t index : indices) {
    TORCH_CHECK(index >= 0 && index < size_, "sample ", index, " of a data set of ", size_);
    const std::uint8_t* pixels = files_.images.pixels.data() + index * kPixels;
    for (std::int64_t i = 0; i < kPixels; ++i) image[i] = table_[pixels[i]];
    image += kPixels;
    *label++ = files_.labels.labels[static_cast<std::size_t>(index)];
  }
  return batch;
}

}  // namespace ladder
