// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <array>
#include <bit>
#include <cstdint>

namespace ladder::windows {

// What the operations that end in ReLU and max-pooling share: images in channels_last, cut into
// windows of 2 x 2 pixels. The rows of all images lie one behind the other, and so do those of
// their windows, so a row of windows covers two rows of pixels.

inline constexpr std::int32_t kNone = 4;  // no pixel of the window is above zero

// The chosen places of some windows, in the width of a float: beside floats, bytes would be
// vectorised 32 or 64 at a time, and few layers have so many channels.
inline constexpr std::int64_t kMostChannels = 4096;
using Places = std::array<std::int32_t, kMostChannels>;

// So many windows are worked on at a time.
inline std::int64_t block_of(std::int64_t channels) { return kMostChannels / channels; }

[[gnu::always_inline]] inline void narrow(const Places& places, std::int64_t count,
                                          std::uint8_t* choice) {
  for (std::int64_t i = 0; i < count; ++i) {
    choice[i] = static_cast<std::uint8_t>(places.data()[i]);
  }
}
[[gnu::always_inline]] inline void widen(const std::uint8_t* choice, std::int64_t count,
                                         Places& places) {
  for (std::int64_t i = 0; i < count; ++i) places.data()[i] = choice[i];
}

struct Row {
  std::int64_t windows;
  std::int64_t channels;
  std::int64_t pooled() const { return windows * channels; }  // elements of the windows
  std::int64_t pixels() const { return 2 * pooled(); }        // elements of one row of pixels
};

inline Row row_of(const torch::Tensor& pooled) { return {pooled.size(3), pooled.size(1)}; }
inline std::int64_t rows_of(const torch::Tensor& pooled) { return pooled.size(0) * pooled.size(2); }

// Which images the operations take: on the CPU, in channels_last, float or bfloat16, of even sides.
inline bool can_cut(const torch::Tensor& images) {
  const auto type = images.scalar_type();
  return images.is_cpu() && (type == torch::kFloat || type == torch::kBFloat16) &&
         images.dim() == 4 && images.is_contiguous(torch::MemoryFormat::ChannelsLast) &&
         images.size(2) % 2 == 0 && images.size(3) % 2 == 0 && images.size(1) <= kMostChannels;
}

// Empty images of the same kind, of half the sides or of twice.
inline torch::Tensor empty_pooled(const torch::Tensor& pixels) {
  return torch::empty({pixels.size(0), pixels.size(1), pixels.size(2) / 2, pixels.size(3) / 2},
                      pixels.options().memory_format(torch::MemoryFormat::ChannelsLast));
}
inline torch::Tensor empty_pixels(const torch::Tensor& pooled) {
  return torch::empty({pooled.size(0), pooled.size(1), 2 * pooled.size(2), 2 * pooled.size(3)},
                      pooled.options().memory_format(torch::MemoryFormat::ChannelsLast));
}

// The bits of a bfloat16, the upper half of a float. C10's class has the same, but loops over it
// are not vectorised.
using Bfloat16Bits = std::uint16_t;

[[gnu::always_inline]] inline float as_float(float number) { return number; }
[[gnu::always_inline]] inline float as_float(Bfloat16Bits bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

template <typename T>
[[gnu::always_inline]] inline T rounded(float number) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return number;
  } else {  // to the nearest, ties to even
    const auto bits = std::bit_cast<std::uint32_t>(number);
    return static_cast<T>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
  }
}

// `number` if that holds, else zero: without a branch, so that loops over it are vectorised.
[[gnu::always_inline]] inline float number_if(bool holds, float number) {
  const auto mask = -static_cast<std::int32_t>(holds);
  return std::bit_cast<float>(std::bit_cast<std::int32_t>(number) & mask);
}

// `best` and `place` become the k-th pixel of a window, if it is larger or a NaN.
[[gnu::always_inline]] inline void take(float value, std::int32_t k, float& best,
                                        std::int32_t& place) {
  const bool better = value > best || value != value;
  best = better ? value : best;
  place = better ? k : place;
}

// The largest of a window's four pixels and its place, or zero and kNone.
struct Largest {
  float value;
  std::int32_t place;
};
[[gnu::always_inline]] inline Largest relu_max(float pixel0, float pixel1, float pixel2,
                                               float pixel3) {
  float best = pixel0;
  std::int32_t place = 0;
  take(pixel1, 1, best, place);
  take(pixel2, 2, best, place);
  take(pixel3, 3, best, place);
  return {best <= 0.0F ? 0.0F : best, best <= 0.0F ? kNone : place};
}

}  // namespace ladder::windows
