// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <span>
#include <string>

#include "ladder/data/dataset.h"

namespace ladder {

struct RandomShiftOptions {
  std::int64_t max_pixels = 2;  // each image moves by -max ... +max in both directions; >= 0
  std::uint64_t seed = 42;      // of the run
  float fill = 0.0F;            // value of pixels from outside of the image
  std::string input;            // name of the images among the inputs; empty = the only input
};

// Moves each image by a few pixels: training data that never repeats exactly.
//
// The shift of an image is a function of (seed, epoch, index of the sample), by Philox; all its
// channels move alike. It does not depend on rank, batch or workers, so the classic mistake of
// workers with equal seeds, which all draw the same noise, is impossible.
class RandomShift : public Transform {
 public:
  // Throws UsageError for a negative max_pixels.
  explicit RandomShift(RandomShiftOptions options);

  struct Offset {
    std::int64_t down;
    std::int64_t right;
  };
  Offset offset(std::int64_t epoch, std::int64_t index) const;

  // Shifts images [N, C, H, W]; `indices` has N entries. float32 on the CPU in one pass, any other
  // by tensor operations. Throws UsageError for another shape.
  void apply(Inputs& inputs, std::span<const std::int64_t> indices,
             std::int64_t epoch) const override;

  // The version for GPUs, by tensor operations on the device of `images`.
  torch::Tensor shifted_by_tensors(const torch::Tensor& images,
                                   std::span<const std::int64_t> indices, std::int64_t epoch) const;

 private:
  torch::Tensor shifted(const torch::Tensor& images, std::span<const std::int64_t> indices,
                        std::int64_t epoch) const;

  RandomShiftOptions options_;
};

}  // namespace ladder
