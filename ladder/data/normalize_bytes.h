// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

namespace ladder {

// Equals: (bytes.to(kFloat32) / 255 - mean) / std, bit for bit: torchvision's ToTensor and
// Normalize.
//
// One pass with the widest vector instructions of the machine. `out`: bytes.size() numbers.
void normalize_bytes(std::span<const std::uint8_t> bytes, float mean, float std, float* out);

// Starts loading `bytes` into the cache; changes nothing. For rows of a shuffled batch.
void prefetch_bytes(std::span<const std::uint8_t> bytes);

}  // namespace ladder
