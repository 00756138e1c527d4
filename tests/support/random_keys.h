// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>

#include "ladder/nn/dropout_mask.h"

namespace ladder {

// Positions `begin` to `begin + count` of an epoch.
inline torch::Tensor positions(std::int64_t begin, std::int64_t count) {
  return torch::arange(begin, begin + count, torch::kInt64);
}

// Of the samples at these positions.
inline RandomKey key_from(std::int64_t begin, std::int64_t count) {
  return {.seed = 42, .epoch = 3, .positions = positions(begin, count)};
}

}  // namespace ladder
