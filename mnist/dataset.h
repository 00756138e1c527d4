// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "ladder/data/dataset.h"
#include "mnist/files.h"
#include "mnist/options.h"
#include "mnist/recipe.h"

namespace mnist {

struct DatasetOptions {
  Normalization normalization;         // default: only / 255
  std::int64_t limit = 0;              // take only the first samples; 0 = all
  torch::Device device = torch::kCPU;  // where images are kept and batches are made
  bool in_host_memory = false;         // also for a GPU: batches are made on the CPU
};

// Images as tensors, and the numbers that normalise them: all on one device.
struct ResidentImages {
  torch::Tensor pixels;     // uint8 [N, 1, 28, 28]
  torch::Tensor labels;     // uint8 [N]
  torch::Tensor max_value;  // 255
  torch::Tensor mean;
  torch::Tensor std;

  // Copies the first `count` images of `files` to `device`.
  ResidentImages(const Files& files, std::int64_t count, const Normalization& normalization,
                 const torch::Device& device);

  // The batch of Dataset::get_batch by tensor operations, for a GPU. Does not wait for the device
  // and copies only the indices to it. Equal bits: the divisors are tensors, because a GPU
  // multiplies by the inverse of a number.
  ladder::Batch gather(std::span<const std::int64_t> indices) const;
};

// MNIST, or another data set in its format or of a formula, kept as bytes (47 MB for 60,000
// images): in host memory, or on a GPU, so that training copies no images.
//
// A batch has one input, "images", float32 [N, 1, 28, 28], and targets int64 [N], each 0 to 9. In
// host memory it is gathered and normalised in one pass (ladder/data/normalize_bytes.h). The
// values are bit-equal to torchvision's ToTensor and Normalize.
class Dataset : public ladder::Dataset {
 public:
  // Reads and checks both files. Throws DataError as read_files does, and UsageError when
  // `options.limit` is larger than the set.
  Dataset(const std::string& root, Split split, DatasetOptions options = {});
  Dataset(Files files, Split split, DatasetOptions options = {});

  // Moves the images to `device` if it is a GPU, unless they have moved before or are to stay in
  // host memory. Not while a loader reads them.
  void to(const torch::Device& device);

  std::int64_t size() const override { return size_; }
  ladder::Batch get_batch(std::span<const std::int64_t> indices) const override;

  // The name of the set, or that it is unknown.
  std::string description() const override { return files_.description; }

 private:
  Files files_;
  std::int64_t size_ = 0;
  Normalization normalization_;
  float mean_;
  float std_;
  bool in_host_memory_;
  std::optional<ResidentImages> resident_;  // unless the device is the CPU
};

// The training and the test set of the options and the recipe: that of a formula for stack, files
// for the others. On `device`, unless
// batches are to be page-locked: then in host memory.
std::shared_ptr<Dataset> load_train(const DataOptions& options, const Recipe& recipe,
                                    const torch::Device& device = torch::kCPU);
std::shared_ptr<Dataset> load_test(const DataOptions& options, const Recipe& recipe,
                                   const torch::Device& device = torch::kCPU);

}  // namespace mnist
