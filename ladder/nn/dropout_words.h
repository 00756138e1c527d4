// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "ladder/core/philox.h"
#include "ladder/nn/dropout.h"
#include "ladder/nn/random_scope.h"

namespace ladder {

// What both kinds of dropout by counter know of a sample: a random word for each of its elements,
// in the order of the contiguous layout.

// An element is dropped when its word is below this.
inline std::uint32_t drop_threshold(const DropoutOptions& options) {
  constexpr std::int64_t kLargest = 0xFFFFFFFF;
  return static_cast<std::uint32_t>(
      std::min<std::int64_t>(std::llround(options.p * 4294967296.0), kLargest));
}

// The others are multiplied by this.
inline float kept_scale(const DropoutOptions& options) {
  return static_cast<float>(1.0 / (1.0 - options.p));
}

inline void draw_words(const RandomKey& key, std::int64_t position, const DropoutOptions& options,
                       std::span<std::uint32_t> words) {
  philox_fill({key.seed, static_cast<std::uint32_t>(key.epoch),
               static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(options.layer)},
              words);
}

// Throws unless there is a position for each sample of `input`.
void check_positions(const torch::Tensor& input, const RandomKey& key);

}  // namespace ladder
