// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "ladder/data/batch.h"

namespace ladder {

// A collection of samples that can be read in any order, a batch at a time.
//
// Reading by batch, not by sample, is what makes a loader cheap: one call, one tensor,
// no stacking. Implementations allow get_batch from several threads at once.
//
// Python's counterpart: torch.utils.data.Dataset with __getitems__.
class Dataset {
 public:
  virtual ~Dataset() = default;

  // Number of samples.
  virtual std::int64_t size() const = 0;

  // For the log and the record of a run: "MNIST train, 60000 images".
  virtual std::string description() const { return std::to_string(size()) + " samples"; }

  // The samples at `indices`, in that order, on the device where they lie, most often the CPU;
  // each index in [0, size()).
  // Positions and the global size are the loader's business and are left unset.
  virtual Batch get_batch(std::span<const std::int64_t> indices) const = 0;
};

}  // namespace ladder
