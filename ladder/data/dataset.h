// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "ladder/data/batch.h"

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

}  // namespace ladder
