// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <array>
#include <bit>
#include <cstdint>

#include "ladder/kernels/vectors.h"

namespace ladder::kernels {

// Shared by the operations that end in ReLU and max-pooling: images in channels_last, cut into
// windows of 2 x 2 pixels. A row of windows covers two rows of pixels; the rows of all images are
// numbered consecutively.

inline constexpr std::int32_t kNone = 4;  // no pixel of the window is above zero

// The index of the largest pixel of each window in a block. As wide as a float: bytes beside floats
// would be vectorised 32 or 64 at a time, and few layers have so many channels.
inline constexpr std::int64_t kMaxChannels = 4096;
using ArgmaxBlock = std::array<std::int32_t, kMaxChannels>;

// Windows per block.
inline std::int64_t block_of(std::int64_t channels) { return kMaxChannels / channels; }

[[gnu::always_inline]] inline void narrow(const ArgmaxBlock& argmax, std::int64_t count,
                                          std::uint8_t* choice) {
  const std::int32_t* index_of = argmax.data();
  for (std::int64_t i = 0; i < count; ++i) choice[i] = static_cast<std::uint8_t>(index_of[i]);
}
[[gnu::always_inline]] inline void widen(const std::uint8_t* choice, std::int64_t count,
                                         ArgmaxBlock& argmax) {
  std::int32_t* index_of = argmax.data();
  for (std::int64_t i = 0; i < count; ++i) index_of[i] = choice[i];
}

struct Row {
  std::int64_t windows;
  std::int64_t channels;
  std::int64_t pooled() const { return windows * channels; }  // elements of the windows
  std::int64_t pixels() const { return 2 * pooled(); }        // elements of one row of pixels
};

inline Row row_of(const torch::Tensor& pooled) { return {pooled.size(3), pooled.size(1)}; }
inline std::int64_t rows_of(const torch::Tensor& pooled) { return pooled.size(0) * pooled.size(2); }

// Whether the operations take these images: on the CPU, channels_last, float or bfloat16, even H,
// W.
inline bool can_cut(const torch::Tensor& images) {
  const auto type = images.scalar_type();
  return images.is_cpu() && (type == torch::kFloat || type == torch::kBFloat16) &&
         images.dim() == 4 && images.is_contiguous(torch::MemoryFormat::ChannelsLast) &&
         images.size(2) % 2 == 0 && images.size(3) % 2 == 0 && images.size(1) > 0 &&
         images.size(1) <= kMaxChannels;
}

// Uninitialised images of the same dtype, with half or twice the height and width.
inline torch::Tensor empty_pooled(const torch::Tensor& pixels) {
  return torch::empty({pixels.size(0), pixels.size(1), pixels.size(2) / 2, pixels.size(3) / 2},
                      pixels.options().memory_format(torch::MemoryFormat::ChannelsLast));
}
inline torch::Tensor empty_pixels(const torch::Tensor& pooled) {
  return torch::empty({pooled.size(0), pooled.size(1), 2 * pooled.size(2), 2 * pooled.size(3)},
                      pooled.options().memory_format(torch::MemoryFormat::ChannelsLast));
}

// `number` if `holds`, else zero; without a branch, so that loops are vectorised.
[[gnu::always_inline]] inline float number_if(bool holds, float number) {
  const auto mask = -static_cast<std::int32_t>(holds);
  return std::bit_cast<float>(std::bit_cast<std::int32_t>(number) & mask);
}

// `best` and `index` become the k-th pixel of a window, if it is larger or a NaN.
[[gnu::always_inline]] inline void update_max(float value, std::int32_t k, float& best,
                                              std::int32_t& index) {
  const bool better = value > best || value != value;
  best = better ? value : best;
  index = better ? k : index;
}

// The largest of a window's four pixels and its index, or zero and kNone.
struct Largest {
  float value;
  std::int32_t index;
};
[[gnu::always_inline]] inline Largest relu_max(float pixel0, float pixel1, float pixel2,
                                               float pixel3) {
  float best = pixel0;
  std::int32_t index = 0;
  update_max(pixel1, 1, best, index);
  update_max(pixel2, 2, best, index);
  update_max(pixel3, 3, best, index);
  return {best <= 0.0F ? 0.0F : best, best <= 0.0F ? kNone : index};
}

}  // namespace ladder::kernels
