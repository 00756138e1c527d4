// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace ladder {

// The random numbers of a training step are a function of this key.
struct RandomKey {
  std::uint64_t seed = 0;   // of the run
  std::int64_t epoch = 0;   // counts from 0; with positions on a GPU, 0
  torch::Tensor positions;  // int64 [N]: in the epoch's order; on a GPU, + 2^32 * epoch
};

struct DropoutMaskOptions {
  double p = 0.5;          // probability that an element becomes zero; in [0, 1)
  std::int64_t layer = 0;  // one number per dropout layer of a network
};

// The mask of a dropout: dropout(ones_like(input), p), with numbers from Philox instead of
// PyTorch's generator, by tensor operations on the device of `input`.
//
// float32, shape and layout of `input`, 0 or 1 / (1 - p). Each element is a function of (seed,
// epoch, position of its sample, layer, index of the element in the contiguous layout): the same on
// any rank and thread, in any batch and layout.
//
// The first dimension of `input` is the sample. Throws c10::Error unless there is one position per
// sample.
torch::Tensor counter_mask_by_tensors(const torch::Tensor& input, const RandomKey& key,
                                      const DropoutMaskOptions& options);

// For other ways to the same mask (kernels/dropout_mask.h): the result, uninitialised.
torch::Tensor empty_mask(const torch::Tensor& input);

// An element is dropped when its word is below the threshold.
std::uint32_t drop_threshold(const DropoutMaskOptions& options);

// The factor of the other elements.
float kept_scale(const DropoutMaskOptions& options);

// Throws c10::Error unless there is one position per sample of `input`.
void check_positions(const torch::Tensor& input, const RandomKey& key);

}  // namespace ladder
