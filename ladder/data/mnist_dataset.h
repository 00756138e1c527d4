// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ladder/data/dataset.h"
#include "ladder/data/mnist_files.h"

namespace ladder {

// What is done to a pixel p in 0 ... 255:  (p / 255 - mean) / std.
struct Normalization {
  double mean = 0.0;
  double std = 1.0;

  // The value that a black pixel has afterwards: what a shifted image is filled with.
  float background() const { return (0.0F - static_cast<float>(mean)) / static_cast<float>(std); }
};

// Mean and standard deviation of the MNIST training pixels, as the PyTorch example has them.
inline constexpr Normalization kMnistNormalization = {0.1307, 0.3081};

struct MnistOptions {
  Normalization normalization;         // default: only / 255
  std::int64_t limit = 0;              // take only the first samples; 0 = all
  torch::Device device = torch::kCPU;  // where the images lie and the batches are made
};

// Images as tensors, and what they are normalised with: all on one device.
struct ResidentImages {
  torch::Tensor pixels;  // uint8 [N, 1, 28, 28]
  torch::Tensor labels;  // uint8 [N]
  torch::Tensor white;   // 255
  torch::Tensor mean;
  torch::Tensor std;

  // Copies the first `count` images of `files` to `device`.
  ResidentImages(const MnistFiles& files, std::int64_t count, const Normalization& normalization,
                 const torch::Device& device);

  // The batch that MnistDataset::get_batch makes, by tensor operations: what a GPU runs. No wait
  // for the device, and only the indices travel to it. Equal bits: the divisors are tensors,
  // because a GPU multiplies by the inverse of a number.
  Batch gather(std::span<const std::int64_t> indices) const;
};

// MNIST, or another data set in its format, resident as bytes (47 MB for 60,000 images): in host
// memory, or on a GPU, to which no image travels while training then.
//
// In host memory a batch is gathered and normalised in one pass, with the widest vector
// instructions of the machine: under half a microsecond an image. The values are bit-equal to
// torchvision's ToTensor and Normalize, because they are computed with the same operations.
class MnistDataset : public Dataset {
 public:
  // Reads and checks both files. Throws DataError as read_mnist_files does, and UsageError when
  // `options.limit` is larger than the set.
  MnistDataset(const std::string& root, Split split, MnistOptions options = {});

  std::int64_t size() const override { return size_; }
  Batch get_batch(std::span<const std::int64_t> indices) const override;

  // The name of the set, or that it is unknown.
  std::string description() const override { return files_.description; }

 private:
  MnistFiles files_;
  std::int64_t size_ = 0;
  float mean_;
  float std_;
  std::optional<ResidentImages> resident_;  // unless the device is the CPU
};

}  // namespace ladder
