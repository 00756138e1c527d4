// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "exercises/grader/grader.h"
#include "ladder/data/dataset.h"
#include "tests/support/training.h"

namespace ladder::exercises {

// `size` random images of 28 × 28 pixels and their labels, the same in every process of a check.
class Images : public TensorDataset {
 public:
  explicit Images(std::int64_t size) : Images(random_batch(size, fresh_seed() + 1)) {}

 private:
  explicit Images(const Batch& all) : TensorDataset(all.inputs, all.targets) {}
};

}  // namespace ladder::exercises
