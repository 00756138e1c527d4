// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ladder/core/simd.h"
#include "ladder/kernels/pool_windows.h"

namespace ladder::kernels {

// The passes of batch_norm_relu_max_pool2d over one row of windows.

inline constexpr std::int64_t kLanes = 8;  // channels that are summed together

// The data of a pass over one row of windows; what a pass does not need is null.
template <typename T>
struct RowArgs {
  Row row;
  const T* input;        // two rows of pixels
  T* pooled;             // output, or its gradient
  std::uint8_t* choice;  // of each window
  T* gradient;           // of the input
  const float* a;        // of each channel; see the passes
  const float* b;
  const float* d;
  double* sums;  // [2][C]
};

template <typename Number>
[[gnu::always_inline]] inline void add_lanes(const Number* lanes, double* sums) {
  for (std::int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += lanes[lane];
}

// sums += x and x * x, over all pixels.
template <typename T>
[[gnu::always_inline]] inline void add_moments(const RowArgs<T>& args) {
  const auto [windows, channels] = args.row;
  for (std::int64_t first = 0; first < channels; first += kLanes) {
    double sum[kLanes] = {};
    double square[kLanes] = {};
    const T* x = args.input + first;
    for (std::int64_t i = 0; i < 4 * windows; ++i, x += channels) {
      LADDER_IVDEP
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        const double value = as_float(x[lane]);
        sum[lane] += value;
        square[lane] += value * value;
      }
    }
    add_lanes(sum, args.sums + first);
    add_lanes(square, args.sums + channels + first);
  }
}

// pooled = largest of relu(x * a + b) in each window of a block.
template <typename T>
[[gnu::always_inline]] inline void pool(const RowArgs<T>& args, std::int64_t first,
                                        std::int64_t windows, ArgmaxBlock& argmax) {
  const std::int64_t channels = args.row.channels;
  const float* scale = args.a;
  const float* shift = args.b;
  const T* above = args.input + 2 * first * channels;
  const T* below = above + args.row.pixels();
  T* out = args.pooled + first * channels;
  std::int32_t* index_of = argmax.data();
  for (std::int64_t i = 0; i < windows; ++i) {
    LADDER_IVDEP
    for (std::int64_t c = 0; c < channels; ++c) {
      const auto found = relu_max(as_float(above[c]) * scale[c] + shift[c],
                                  as_float(above[channels + c]) * scale[c] + shift[c],
                                  as_float(below[c]) * scale[c] + shift[c],
                                  as_float(below[channels + c]) * scale[c] + shift[c]);
      out[c] = rounded<T>(found.value);
      index_of[c] = found.index;
    }
    above += 2 * channels;
    below += 2 * channels;
    out += channels;
    index_of += channels;
  }
  narrow(argmax, windows * channels, args.choice + first * channels);
}

// sums += g and g * (x - a), over the chosen pixels; a is the mean.
template <typename T>
[[gnu::always_inline]] inline void add_gradients(const RowArgs<T>& args) {
  const auto [windows, channels] = args.row;
  for (std::int64_t first = 0; first < channels; first += kLanes) {
    float sum[kLanes] = {};
    float product[kLanes] = {};
    const float* mean = args.a + first;
    const T* above = args.input + first;
    const T* below = above + args.row.pixels();
    const T* gradient = args.pooled + first;
    const std::uint8_t* choice = args.choice + first;
    for (std::int64_t i = 0; i < windows; ++i) {
      LADDER_IVDEP
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        const std::int32_t index = choice[lane];
        const float x = number_if(index == 0, as_float(above[lane])) +
                        number_if(index == 1, as_float(above[channels + lane])) +
                        number_if(index == 2, as_float(below[lane])) +
                        number_if(index == 3, as_float(below[channels + lane]));
        const float g = number_if(index != kNone, as_float(gradient[lane]));
        sum[lane] += g;
        product[lane] += g * (x - mean[lane]);
      }
      above += 2 * channels;
      below += 2 * channels;
      gradient += channels;
      choice += channels;
    }
    add_lanes(sum, args.sums + first);
    add_lanes(product, args.sums + channels + first);
  }
}

// gradient = g * a - x * d - b; g is zero but for the chosen pixel.
template <typename T>
[[gnu::always_inline]] inline void write_gradient(const RowArgs<T>& args, std::int64_t first,
                                                  std::int64_t windows, ArgmaxBlock& argmax) {
  const std::int64_t channels = args.row.channels;
  const float* scale = args.a;
  const float* shift = args.b;
  const float* slope = args.d;
  widen(args.choice + first * channels, windows * channels, argmax);
  for (std::int64_t i = 0; i < 2 * windows; ++i) {
    const std::int64_t window = i % windows;
    const std::int64_t offset =
        2 * (first + window) * channels + (i < windows ? 0 : args.row.pixels());
    const std::int32_t left_index = i < windows ? 0 : 2;
    const T* x = args.input + offset;
    T* out = args.gradient + offset;
    const T* gradient = args.pooled + (first + window) * channels;
    const std::int32_t* index_of = argmax.data() + window * channels;
    LADDER_IVDEP
    for (std::int64_t c = 0; c < channels; ++c) {
      const float g = as_float(gradient[c]) * scale[c];
      const float left = number_if(index_of[c] == left_index, g);
      const float right = number_if(index_of[c] == left_index + 1, g);
      out[c] = rounded<T>(left - as_float(x[c]) * slope[c] - shift[c]);
      out[channels + c] = rounded<T>(right - as_float(x[channels + c]) * slope[c] - shift[c]);
    }
  }
}

}  // namespace ladder::kernels
