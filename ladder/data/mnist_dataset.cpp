// SPDX-License-Identifier: Apache-2.0
#include "ladder/data/mnist_dataset.h"

#include <fmt/core.h>
#include <torch/types.h>

#include "ladder/core/error.h"

namespace ladder {
namespace {

constexpr std::int64_t kSide = 28;
constexpr std::int64_t kPixels = kSide * kSide;

// One version a generation of x86 vector instructions, chosen when the program starts: too early
// for ThreadSanitizer.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
[[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]]
#endif
void normalize(const std::uint8_t* pixels, float mean, float std, float* image) {
  for (std::int64_t i = 0; i < kPixels; ++i) {
    image[i] = (static_cast<float>(pixels[i]) / 255.0F - mean) / std;
  }
}

// Asks for an image ahead of its use: random images are not in the cache.
void prefetch(const std::uint8_t* pixels) {
  constexpr std::int64_t kCacheLine = 64;
  for (std::int64_t i = 0; i < kPixels; i += kCacheLine) __builtin_prefetch(pixels + i);
}

std::int64_t limited(std::int64_t limit, std::int64_t count, Split split) {
  if (limit < 0 || limit > count) {
    throw UsageError::out_of_range(split == Split::kTrain ? "--limit-train" : "--limit-test", limit,
                                   fmt::format("0 (all) to {}", count));
  }
  return limit == 0 ? count : limit;
}

}  // namespace

MnistDataset::MnistDataset(const std::string& root, Split split, MnistOptions options)
    : files_(read_mnist_files(root, split)),
      size_(limited(options.limit, files_.images.count, split)),
      mean_(static_cast<float>(options.normalization.mean)),
      std_(static_cast<float>(options.normalization.std)) {}

Batch MnistDataset::get_batch(std::span<const std::int64_t> indices) const {
  const auto count = static_cast<std::int64_t>(indices.size());
  Batch batch{.images = torch::empty({count, 1, kSide, kSide}),
              .labels = torch::empty({count}, torch::kInt64)};
  auto* image = batch.images.mutable_data_ptr<float>();
  auto* label = batch.labels.mutable_data_ptr<std::int64_t>();
  for (const std::int64_t index : indices) {
    TORCH_CHECK(index >= 0 && index < size_, "sample ", index, " of a data set of ", size_);
  }
  const std::uint8_t* pixels = files_.images.pixels.data();
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (i + 1 < indices.size()) prefetch(pixels + indices[i + 1] * kPixels);
    normalize(pixels + indices[i] * kPixels, mean_, std_, image);
    image += kPixels;
    *label++ = files_.labels.labels[static_cast<std::size_t>(indices[i])];
  }
  return batch;
}

}  // namespace ladder
