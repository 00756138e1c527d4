// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <span>

namespace ladder {

struct RandomShiftOptions {
  std::int64_t max_pixels = 2;  // each image moves by -max ... +max in both directions; >= 0
  std::uint64_t seed = 42;      // of the run
  float fill = 0.0F;            // value of the pixels that come in from outside
};

// Moves each image by a few pixels: training data that never repeats exactly.
//
// The shift of an image is a function of (seed, epoch, index of the sample), by Philox. It
// does not depend on the rank, the batch or the number of workers, which cures a classic
// mistake: workers with equally seeded generators that all draw the same noise.
class RandomShift {
 public:
  explicit RandomShift(RandomShiftOptions options);

  struct Offset {
    std::int64_t down;
    std::int64_t right;
  };
  Offset offset(std::int64_t epoch, std::int64_t index) const;

  // Shifts images [N, 1, H, W] (float32, contiguous); `indices` has N entries. In place on the CPU;
  // on a GPU `images` becomes another tensor.
  void apply(torch::Tensor& images, std::span<const std::int64_t> indices,
             std::int64_t epoch) const;

  // The same by tensor operations on the device of `images`: what a GPU runs.
  torch::Tensor shifted_by_tensors(const torch::Tensor& images,
                                   std::span<const std::int64_t> indices, std::int64_t epoch) const;

 private:
  RandomShiftOptions options_;
};

}  // namespace ladder
