// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "exercises/exercise.h"

namespace ladder::exercises {

// What the ranks of a training divide among them.
enum class Division {
  kNothing,         // DistributedDataParallel
  kOptimizerState,  // the same with ZeRO-1
  kAll,             // fully sharded: weights, gradients and state of the optimizer
};

// Of one rank.
struct RankBytes {
  std::int64_t weights = 0;    // between two steps
  std::int64_t gradients = 0;  // when backward has ended
  std::int64_t state = 0;      // of AdamW
  std::int64_t sent = 0;       // per step
};

struct Memory {
  // `units`: the numbers of weights of the layers, float32.
  RankBytes (*bytes_per_rank)(Division division, const std::vector<std::int64_t>& units, int ranks);
};

}  // namespace ladder::exercises
