// SPDX-License-Identifier: Apache-2.0
#include "mnist/dataset.h"

#include <fmt/core.h>
#include <torch/types.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "ladder/core/device.h"
#include "ladder/core/error.h"
#include "ladder/data/normalize_bytes.h"

namespace mnist {
namespace {

using ladder::Batch;
using ladder::normalize_bytes;
using ladder::prefetch_bytes;
using ladder::send_to_device;
using ladder::UsageError;

constexpr std::int64_t kSide = 28;
constexpr std::int64_t kPixels = kSide * kSide;
constexpr const char* kInput = "images";

std::int64_t limited(std::int64_t limit, std::int64_t count, Split split) {
  if (limit < 0 || limit > count) {
    throw UsageError::out_of_range(split == Split::kTrain ? "--limit-train" : "--limit-test", limit,
                                   fmt::format("0 (all) to {}", count),
                                   "omit the flag for all images");
  }
  return limit == 0 ? count : limit;
}

std::shared_ptr<Dataset> load(Split split, std::int64_t limit, const DataOptions& options,
                              const Recipe& recipe, const torch::Device& device) {
  auto files = recipe.name() == "stack" ? formula_files(split) : read_files(options.root, split);
  return std::make_shared<Dataset>(std::move(files), split,
                                   DatasetOptions{.normalization = recipe.normalization(),
                                                  .limit = limit,
                                                  .device = device,
                                                  .in_host_memory = options.pin_memory});
}

}  // namespace

ResidentImages::ResidentImages(const Files& files, std::int64_t count,
                               const Normalization& normalization, const torch::Device& device) {
  const auto bytes = [&](const std::vector<std::uint8_t>& source, torch::IntArrayRef sizes) {
    auto tensor = torch::empty(sizes, torch::kUInt8);
    std::copy_n(source.begin(), tensor.numel(), tensor.mutable_data_ptr<std::uint8_t>());
    return tensor.to(device);
  };
  const auto number = [&](double value) { return torch::full({}, value, device); };
  pixels = bytes(files.images.pixels, {count, 1, kSide, kSide});
  labels = bytes(files.labels.labels, {count});
  max_value = number(255.0);
  mean = number(normalization.mean);
  std = number(normalization.std);
}

Batch ResidentImages::gather(std::span<const std::int64_t> indices) const {
  const auto rows = send_to_device(
      torch::tensor(at::ArrayRef<std::int64_t>(indices.data(), indices.size())), pixels.device());
  auto images = pixels.index_select(0, rows).to(torch::kFloat32);
  return {.inputs = {{kInput, images.div_(max_value).sub_(mean).div_(std)}},
          .targets = labels.index_select(0, rows).to(torch::kInt64)};
}

Dataset::Dataset(const std::string& root, Split split, DatasetOptions options)
    : Dataset(read_files(root, split), split, options) {}

Dataset::Dataset(Files files, Split split, DatasetOptions options)
    : files_(std::move(files)),
      size_(limited(options.limit, files_.images.count, split)),
      normalization_(options.normalization),
      mean_(static_cast<float>(options.normalization.mean)),
      std_(static_cast<float>(options.normalization.std)),
      in_host_memory_(options.in_host_memory) {
  to(options.device);
}

void Dataset::to(const torch::Device& device) {
  if (device.is_cpu() || in_host_memory_ || resident_) return;
  resident_.emplace(files_, size_, normalization_, device);
  files_.images.pixels = {};
  files_.labels.labels = {};
}

Batch Dataset::get_batch(std::span<const std::int64_t> indices) const {
  for (const std::int64_t index : indices) {
    TORCH_CHECK(index >= 0 && index < size_, "sample ", index, " of a data set of ", size_);
  }
  if (resident_) return resident_->gather(indices);
  const auto count = static_cast<std::int64_t>(indices.size());
  auto images = torch::empty({count, 1, kSide, kSide});
  auto labels = torch::empty({count}, torch::kInt64);
  auto* image = images.mutable_data_ptr<float>();
  auto* label = labels.mutable_data_ptr<std::int64_t>();
  const auto pixels_of = [&](std::int64_t index) {
    return std::span(files_.images.pixels)
        .subspan(static_cast<std::size_t>(index * kPixels), static_cast<std::size_t>(kPixels));
  };
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (i + 1 < indices.size()) prefetch_bytes(pixels_of(indices[i + 1]));
    normalize_bytes(pixels_of(indices[i]), mean_, std_, image);
    image += kPixels;
    *label++ = files_.labels.labels[static_cast<std::size_t>(indices[i])];
  }
  return {.inputs = {{kInput, images}}, .targets = labels};
}

std::shared_ptr<Dataset> load_train(const DataOptions& options, const Recipe& recipe,
                                    const torch::Device& device) {
  return load(Split::kTrain, options.limit_train, options, recipe, device);
}

std::shared_ptr<Dataset> load_test(const DataOptions& options, const Recipe& recipe,
                                   const torch::Device& device) {
  return load(Split::kTest, options.limit_test, options, recipe, device);
}

}  // namespace mnist
