// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <span>
#include <string>

#include "ladder/data/transform.h"

namespace ladder {

struct RandomShiftOptions {
  std::int64_t max_pixels = 2;  // each image moves by -max ... +max in both directions; >= 0
  std::uint64_t seed = 42;      // of the run
  float fill = 0.0F;            // value of pixels that come in from outside
  std::string input;            // name of the images among the inputs; empty = the only input
};

// Moves each image by a few pixels: training data that never repeats exactly.
//
// The shift of an image is a function of (seed, epoch, index of the sample), by Philox; all its
// channels move alike. It depends neither on the rank nor on the batch nor on the number of
// workers, which prevents a classic mistake: workers with equally seeded generators that all draw
// the same noise.
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

  // The same by tensor operations on the device of `images`: what a GPU runs.
  torch::Tensor shifted_by_tensors(const torch::Tensor& images,
                                   std::span<const std::int64_t> indices, std::int64_t epoch) const;

 private:
  torch::Tensor shifted(const torch::Tensor& images, std::span<const std::int64_t> indices,
                        std::int64_t epoch) const;

  RandomShiftOptions options_;
};

}  // namespace ladder
