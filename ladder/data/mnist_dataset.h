// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
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
  Normalization normalization;  // default: only / 255
  std::int64_t limit = 0;       // take only the first samples; 0 = all
};

// MNIST, or another data set in its format, resident as bytes (47 MB for 60,000 images).
//
// A batch is gathered and normalised in one pass, with the widest vector instructions of the
// machine: under half a microsecond an image. The values are bit-equal to torchvision's ToTensor
// and Normalize, because they are computed with the same operations.
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
};

}  // namespace ladder
