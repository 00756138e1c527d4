// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <span>
#include <vector>

#include "ladder/data/dataset.h"
#include "tests/support/training.h"

namespace ladder::exercises {

// `size` random images of 28 × 28 pixels and their labels, the same in every process.
class Images : public Dataset {
 public:
  explicit Images(std::int64_t size) : all_(random_batch(size)) {}

  std::int64_t size() const override { return all_.size(); }
  Batch get_batch(std::span<const std::int64_t> indices) const override {
    const auto rows =
        torch::tensor(std::vector<std::int64_t>(indices.begin(), indices.end()), torch::kInt64);
    return {.inputs = all_.inputs.only().index_select(0, rows),
            .targets = all_.targets.index_select(0, rows)};
  }

 private:
  Batch all_;
};

}  // namespace ladder::exercises
