// SPDX-License-Identifier: Apache-2.0
#include "ladder/data/mnist_dataset.h"

#include <fmt/core.h>
#include <torch/types.h>

#include <algorithm>
#include <vector>

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

ResidentImages::ResidentImages(const MnistFiles& files, std::int64_t count,
                               const Normalization& normalization, const torch::Device& device) {
  const auto bytes = [&](const std::vector<std::uint8_t>& source, torch::IntArrayRef sizes) {
    auto tensor = torch::empty(sizes, torch::kUInt8);
    std::copy_n(source.begin(), tensor.numel(), tensor.mutable_data_ptr<std::uint8_t>());
    return tensor.to(device);
  };
  const auto number = [&](double value) { return torch::full({}, value, device); };
  pixels = bytes(files.images.pixels, {count, 1, kSide, kSide});
  labels = bytes(files.labels.labels, {count});
  white = number(255.0);
  mean = number(normalization.mean);
  std = number(normalization.std);
}

Batch ResidentImages::gather(std::span<const std::int64_t> indices) const {
  const auto rows = torch::tensor(at::ArrayRef<std::int64_t>(indices.data(), indices.size()))
                        .to(pixels.device(), /*non_blocking=*/true);
  auto images = pixels.index_select(0, rows).to(torch::kFloat32);
  return {.images = images.div_(white).sub_(mean).div_(std),
          .labels = labels.index_select(0, rows).to(torch::kInt64)};
}

MnistDataset::MnistDataset(const std::string& root, Split split, MnistOptions options)
    : files_(read_mnist_files(root, split)),
      size_(limited(options.limit, files_.images.count, split)),
      mean_(static_cast<float>(options.normalization.mean)),
      std_(static_cast<float>(options.normalization.std)) {
  if (!options.device.is_cpu()) {
    resident_.emplace(files_, size_, options.normalization, options.device);
    files_.images.pixels = {};
    files_.labels.labels = {};
  }
}

Batch MnistDataset::get_batch(std::span<const std::int64_t> indices) const {
  for (const std::int64_t index : indices) {
    TORCH_CHECK(index >= 0 && index < size_, "sample ", index, " of a data set of ", size_);
  }
  if (resident_) return resident_->gather(indices);
  const auto count = static_cast<std::int64_t>(indices.size());
  Batch batch{.images = torch::empty({count, 1, kSide, kSide}),
              .labels = torch::empty({count}, torch::kInt64)};
  auto* image = batch.images.mutable_data_ptr<float>();
  auto* label = batch.labels.mutable_data_ptr<std::int64_t>();
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
