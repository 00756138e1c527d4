// SPDX-License-Identifier: Apache-2.0
#include "ladder/data/normalize_bytes.h"

#include <cstddef>

#include "ladder/core/simd.h"

namespace ladder {
namespace {

LADDER_SIMD_V4
void normalize(const std::uint8_t* bytes, std::size_t count, float mean, float std, float* out) {
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = (static_cast<float>(bytes[i]) / 255.0F - mean) / std;
  }
}

}  // namespace

void normalize_bytes(std::span<const std::uint8_t> bytes, float mean, float std, float* out) {
  normalize(bytes.data(), bytes.size(), mean, std, out);
}

void prefetch_bytes(std::span<const std::uint8_t> bytes) {
  constexpr std::size_t kCacheLine = 64;
  for (std::size_t i = 0; i < bytes.size(); i += kCacheLine) __builtin_prefetch(bytes.data() + i);
}

}  // namespace ladder
