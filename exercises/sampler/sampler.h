// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "exercises/exercise.h"

namespace ladder::exercises {

// Two functions, each for the part of one rank: indices of samples in reading order.
struct Sampler {
  std::vector<std::int64_t> (*training_part)(std::int64_t size, std::uint64_t seed,
                                             std::int64_t epoch, int rank, int world_size);
  std::vector<std::int64_t> (*evaluation_part)(std::int64_t size, int rank, int world_size);
};

}  // namespace ladder::exercises
