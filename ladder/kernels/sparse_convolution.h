// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "ladder/core/simd.h"
#include "ladder/kernels/pool_windows.h"
#include "ladder/kernels/vectors.h"

namespace ladder::kernels {

// The backward of a 3 x 3 convolution behind ReLU and max-pooling, for one image.
//
// Of the four pixels of a window, pooling gives the gradient to one; ReLU gives it to none where
// the largest is not positive; and dropout behind the pooling makes more of the pooled gradients
// zero. So of the convolution's output gradient at most a quarter is not zero, and it is never
// written: the passes below go from the pooled gradients that are not zero, each with the place of
// its pixel, to the nine input pixels below that pixel.
//
//     pooled gradient g of window (wy, wx), output channel o, pixel (py, px) of the window
//       input gradient [2 wy + py + ky][2 wx + px + kx][:] += g * weight[o][ky][kx][:]
//       weight gradient [o][ky][kx][:] += g * input[2 wy + py + ky][2 wx + px + kx][:]

// All images are in channels_last, without padding.
struct ConvolutionShape {
  static constexpr std::int64_t kTaps = 9;

  std::int64_t height;        // of the input
  std::int64_t width;         // of the input
  std::int64_t in_channels;   // a multiple of 16
  std::int64_t out_channels;  // a multiple of 16

  std::int64_t windows_across() const { return (width - 2) / 2; }
  std::int64_t windows() const { return (height - 2) / 2 * windows_across(); }
  std::int64_t input_size() const { return height * width * in_channels; }
  std::int64_t pooled_size() const { return windows() * out_channels; }
  std::int64_t weight_size() const { return out_channels * kTaps * in_channels; }
  std::int64_t masks() const { return windows() * words(); }

  // Output channels are taken 64 at a time, the bits of a word.
  std::int64_t words() const { return (out_channels + 63) / 64; }
  std::int64_t channels_of(std::int64_t word) const {
    return std::min<std::int64_t>(64, out_channels - 64 * word);
  }

  // The input pixel below the first pixel of a window.
  std::int64_t corner_of(std::int64_t window) const {
    return 2 * (window / windows_across() * width + window % windows_across());
  }
};

// Which of 64 channels have a gradient in a window: at its pixel 0, 1, 2 and 3.
using WindowMask = std::array<std::uint64_t, 4>;

// kBlock: 32, or 16 where `in` is no multiple of it. Channels in blocks of a constant size make the
// distances between the nine factors constants of the instructions.
struct ConvolutionBackward {
  ConvolutionShape shape;
  const float* gradient;       // pooled: [windows][out]
  const std::uint8_t* choice;  // the pixel of each window, or kNone: [windows][out]
  const float* input;          // [in / kBlock][height][width][kBlock]
  const float* weight;         // [in / kBlock][out][3][3][kBlock]
  WindowMask* masks;           // [windows][words]
  float* input_gradient;       // [height][width][in]; may be null
  float* weight_gradient;      // added to: [out][3][3][in]
  float* bias_gradient;        // added to: [out]
};

// Bit i of the result is bit `bit` of byte i.
[[gnu::always_inline]] inline std::uint64_t bits_of_bytes(const std::uint8_t* bytes, int bit) {
  std::uint64_t found = 0;
  for (std::int64_t i = 0; i < 8; ++i) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, bytes + 8 * i, 8);
    // The product has bit k of byte 7 for byte k, without a carry into it.
    const std::uint64_t lowest = (eight >> bit) & 0x0101'0101'0101'0101;
    found |= (lowest * 0x0102'0408'1020'4080) >> 56 << (8 * i);
  }
  return found;
}
static_assert(std::endian::native == std::endian::little);

[[gnu::always_inline]] inline void find_live_channels(const ConvolutionBackward& args) {
  const ConvolutionShape shape = args.shape;
  WindowMask* mask = args.masks;
  for (std::int64_t window = 0; window < shape.windows(); ++window) {
    for (std::int64_t word = 0; word < shape.words(); ++word, ++mask) {
      const std::int64_t first = window * shape.out_channels + 64 * word;
      std::uint8_t codes[64];  // 0 to 3 = the pixel; bit 2 = no gradient
      if (shape.channels_of(word) < 64) std::fill_n(codes, 64, kNone);
      for (std::int64_t i = 0; i < shape.channels_of(word); i += 16) {
        const float* gradient = args.gradient + first + i;
        const std::uint8_t* choice = args.choice + first + i;
        LADDER_IVDEP
        for (int k = 0; k < 16; ++k) {
          const auto bits = std::bit_cast<std::uint32_t>(gradient[k]);
          const auto is_zero = static_cast<std::uint8_t>(bits << 1 == 0);
          codes[i + k] = static_cast<std::uint8_t>(choice[k] | is_zero * kNone);
        }
      }
      const std::uint64_t right = bits_of_bytes(codes, 0);
      const std::uint64_t below = bits_of_bytes(codes, 1);
      const std::uint64_t live = ~bits_of_bytes(codes, 2);
      *mask = {live & ~(right | below), live & right & ~below, live & below & ~right,
               live & right & below};
    }
  }
}

// The gradients of one pixel of a window, of the channels in `mask`. `patch`: the 4 x 4 input
// pixels below the window.
template <int kPixel, int kBlock, typename V>
[[gnu::always_inline]] inline void add_channels(std::uint64_t mask, const float* gradient,
                                                const float* weight, V (&patch)[16]) {
  for (; mask != 0; mask &= mask - 1) {
    const int channel = std::countr_zero(mask);
    const float* of_channel = weight + channel * ConvolutionShape::kTaps * kBlock;
#pragma GCC unroll 9
    for (std::int64_t tap = 0; tap < ConvolutionShape::kTaps; ++tap) {
      V factor;
      load(factor, of_channel + tap * kBlock);
      patch[4 * (kPixel / 2 + tap / 3) + kPixel % 2 + tap % 3] += gradient[channel] * factor;
    }
  }
}

// The patch of a window is summed in registers, for kLanes input channels at a time: their weights
// stay in the L1 cache over all windows.
template <int kLanes, int kBlock>
[[gnu::always_inline]] inline void write_input_gradient(const ConvolutionBackward& args) {
  const ConvolutionShape shape = args.shape;
  const std::int64_t block_size = shape.out_channels * ConvolutionShape::kTaps * kBlock;
  std::fill_n(args.input_gradient, shape.input_size(), 0.0F);
  for (std::int64_t c = 0; c < shape.in_channels; c += kLanes) {
    const float* weights = args.weight + c / kBlock * block_size + c % kBlock;
    const WindowMask* mask = args.masks;
    for (std::int64_t window = 0; window < shape.windows(); ++window) {
      Vectors<kLanes, 16> patch = {};
      for (std::int64_t word = 0; word < shape.words(); ++word, ++mask) {
        const float* gradient = args.gradient + window * shape.out_channels + 64 * word;
        const float* weight = weights + 64 * word * ConvolutionShape::kTaps * kBlock;
        add_channels<0, kBlock>((*mask)[0], gradient, weight, patch);
        add_channels<1, kBlock>((*mask)[1], gradient, weight, patch);
        add_channels<2, kBlock>((*mask)[2], gradient, weight, patch);
        add_channels<3, kBlock>((*mask)[3], gradient, weight, patch);
      }
      float* corner = args.input_gradient + shape.corner_of(window) * shape.in_channels + c;
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        float* pixel = corner + (i / 4 * shape.width + i % 4) * shape.in_channels;
        Vector<kLanes> sum;
        load(sum, pixel);
        sum += patch[i];
        store(pixel, sum);
      }
    }
  }
}

// Bit i of row j becomes bit j of row i, for 64 rows.
[[gnu::always_inline]] inline void transpose_bits(std::uint64_t* rows) {
  std::uint64_t mask = 0x0000'0000'FFFF'FFFF;
  for (int j = 32; j != 0; j /= 2, mask ^= mask << j) {
    for (int block = 0; block < 64; block += 2 * j) {
      for (int k = block; k < block + j; ++k) {
        const std::uint64_t swap = (rows[k] >> j ^ rows[k + j]) & mask;
        rows[k] ^= swap << j;
        rows[k + j] ^= swap;
      }
    }
  }
}

// Windows whose input pixels stay in the L1 cache while all output channels are done: at most 64,
// the bits of a word.
template <int kBlock>
std::int64_t windows_of_band(const ConvolutionShape& shape) {
  constexpr std::int64_t kBytes = 24 << 10;
  const std::int64_t bytes_of_row = shape.width * kBlock * std::int64_t{sizeof(float)};
  const std::int64_t rows = std::max<std::int64_t>(1, (kBytes / bytes_of_row - 2) / 2);
  return std::min<std::int64_t>(64, rows * shape.windows_across());
}

// The weights of one output channel, summed in registers over the windows of a band. `live`: those
// that give it a gradient. `pixels`: of each window, the input pixels below its four pixels.
template <int kLanes, int kBlock, int kVectors>
[[gnu::always_inline]] inline void add_weights_of_channel(std::uint64_t live, const float* gradient,
                                                          const std::uint8_t* choice,
                                                          std::int64_t channels, const float* input,
                                                          const std::array<std::int32_t, 4>* pixels,
                                                          std::int64_t row, float* result,
                                                          std::int64_t in_channels) {
  constexpr std::int64_t kSums = ConvolutionShape::kTaps * kVectors;
  Vectors<kLanes, kSums> sums;
#pragma GCC unroll 18
  for (std::int64_t k = 0; k < kSums; ++k) {
    load(sums[k], result + k / kVectors * in_channels + k % kVectors * kLanes);
  }
  for (; live != 0; live &= live - 1) {
    const int window = std::countr_zero(live);
    const std::int64_t at = window * channels;
    const float* pixel = input + pixels[window][choice[at]];
    const float* rows[3] = {pixel, pixel + row, pixel + 2 * row};
    const float g = gradient[at];
#pragma GCC unroll 18
    for (std::int64_t k = 0; k < kSums; ++k) {
      const std::int64_t tap = k / kVectors;
      Vector<kLanes> factor;
      load(factor, rows[tap / 3] + tap % 3 * kBlock + k % kVectors * kLanes);
      sums[k] += g * factor;
    }
  }
#pragma GCC unroll 18
  for (std::int64_t k = 0; k < kSums; ++k) {
    store(result + k / kVectors * in_channels + k % kVectors * kLanes, sums[k]);
  }
}

template <int kLanes, int kBlock>
[[gnu::always_inline]] inline void add_weight_gradient(const ConvolutionBackward& args) {
  const ConvolutionShape shape = args.shape;
  // 2: 18 of 32 registers
  constexpr std::int64_t kVectors = 2 * kLanes <= kBlock && kLanes == 16 ? 2 : 1;
  const std::int64_t row = shape.width * kBlock;
  const std::int64_t band = windows_of_band<kBlock>(shape);
  for (std::int64_t first = 0; first < shape.windows(); first += band) {
    const std::int64_t windows = std::min(band, shape.windows() - first);
    std::array<std::int32_t, 4> pixels[64];
    for (std::int64_t i = 0; i < windows; ++i) {
      const auto corner = static_cast<std::int32_t>(shape.corner_of(first + i) * kBlock);
      const auto below = static_cast<std::int32_t>(corner + row);
      pixels[i] = {corner, corner + kBlock, below, below + kBlock};
    }
    for (std::int64_t word = 0; word < shape.words(); ++word) {
      std::uint64_t live[64] = {};  // of each window its channels, then the reverse
      for (std::int64_t i = 0; i < windows; ++i) {
        const WindowMask& mask = args.masks[(first + i) * shape.words() + word];
        live[i] = mask[0] | mask[1] | mask[2] | mask[3];
      }
      transpose_bits(live);
      for (std::int64_t i = 0; i < shape.channels_of(word); ++i) {
        const std::int64_t channel = 64 * word + i;
        const std::int64_t at = first * shape.out_channels + channel;
        float* result =
            args.weight_gradient + channel * ConvolutionShape::kTaps * shape.in_channels;
        for (std::int64_t c = 0; c < shape.in_channels; c += kVectors * kLanes) {
          add_weights_of_channel<kLanes, kBlock, kVectors>(
              live[i], args.gradient + at, args.choice + at, shape.out_channels,
              args.input + c / kBlock * shape.height * row + c % kBlock, pixels, row, result + c,
              shape.in_channels);
        }
      }
    }
  }
}

[[gnu::always_inline]] inline void add_bias_gradient(const ConvolutionBackward& args) {
  const std::int64_t channels = args.shape.out_channels;
  for (std::int64_t at = 0; at < args.shape.pooled_size(); at += channels) {
    LADDER_IVDEP
    for (std::int64_t c = 0; c < channels; ++c) {
      args.bias_gradient[c] += number_if(args.choice[at + c] != kNone, args.gradient[at + c]);
    }
  }
}

}  // namespace ladder::kernels
