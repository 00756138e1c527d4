// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "ladder/data/batch.h"
#include "ladder/data/inputs.h"

namespace ladder {

// A collection of samples, read in any order, one batch per call: one tensor per input, no
// stacking. Implementations must allow get_batch from several threads at once.
//
// Python's counterpart: torch.utils.data.Dataset with __getitems__.
class Dataset {
 public:
  virtual ~Dataset() = default;

  // Number of samples.
  virtual std::int64_t size() const = 0;

  // For the log: "digits, 60000 images".
  virtual std::string description() const { return std::to_string(size()) + " samples"; }

  // The samples at `indices`, one or more, in that order, on the device of the data set; each index
  // in [0, size()). Sets inputs and targets, with one row per index (UsageError of the loader); the
  // loader sets the other fields.
  virtual Batch get_batch(std::span<const std::int64_t> indices) const = 0;
};

// Changes training samples at random, one batch at a time.
//
// The change of a sample must be a function of (epoch, index of the sample) alone: then it is the
// same on any rank, for any number of workers and after a resume. Draw numbers with philox4x32
// (core/philox.h) and a third counter word from 0xC0000000 on; the library uses smaller ones.
// A DataLoader calls apply() from several worker threads at once.
// Python's counterpart: the `transform` of a torchvision data set.
class Transform {
 public:
  Transform() = default;
  virtual ~Transform() = default;
  Transform(const Transform&) = delete;
  Transform& operator=(const Transform&) = delete;

  // `indices`: the samples of the batch, one per row of `inputs`. Epochs count from 0.
  virtual void apply(Inputs& inputs, std::span<const std::int64_t> indices,
                     std::int64_t epoch) const = 0;
};

// Samples in memory: one row per sample in each tensor.
//
//     DataLoader loader(std::make_shared<TensorDataset>(images, labels), {.batch_size = 64});
//
// Python's counterpart: torch.utils.data.TensorDataset.
class TensorDataset : public Dataset {
 public:
  // `targets` may be undefined. Throws UsageError if the tensors differ in their number of rows.
  explicit TensorDataset(Inputs inputs, torch::Tensor targets = {})
      : inputs_(std::move(inputs)), targets_(std::move(targets)), size_(inputs_.rows()) {
    if (targets_.defined()) {
      static_cast<void>(Inputs{{"inputs", inputs_.begin()->second}, {"targets", targets_}}.rows());
    }
  }

  std::int64_t size() const override { return size_; }
  Batch get_batch(std::span<const std::int64_t> indices) const override {
    const auto rows = torch::tensor(at::IntArrayRef(indices.data(), indices.size()), torch::kInt64);
    const auto select = [&](const torch::Tensor& all) {
      return all.defined() ? all.index_select(0, rows.to(all.device())) : all;
    };
    Batch batch;
    batch.inputs = inputs_.map(select);
    batch.targets = select(targets_);
    return batch;
  }

 private:
  Inputs inputs_;
  torch::Tensor targets_;
  std::int64_t size_;
};

}  // namespace ladder
