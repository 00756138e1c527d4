// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

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

  // The samples at `indices`, in that order, on the device of the data set; each index in
  // [0, size()). Sets inputs and targets, with one row per index (UsageError of the loader); the
  // loader sets the other fields.
  virtual Batch get_batch(std::span<const std::int64_t> indices) const = 0;
};

// Changes training samples at random, one batch at a time.
//
// The change of a sample must be a function of (epoch, index of the sample) alone: then it is the
// same on any rank, for any number of workers and after a resume. Draw numbers with philox4x32
// (core/philox.h) and a third counter word from 0xB0000000 on; the library uses smaller ones.
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

}  // namespace ladder
