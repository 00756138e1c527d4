// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <span>

#include "ladder/nn/dropout_mask.h"

namespace ladder {

// Equals: counter_mask_by_tensors(input, key, options), bit for bit.
//
// On the CPU one pass on all threads; on a GPU one kernel (dropout_mask_cuda.h). The first mask on
// each GPU is compared with tensor operations, which waits for the GPU: if the kernel fails or its
// bits differ, one line warns, and that GPU uses tensor operations. Does not wait otherwise.
torch::Tensor counter_mask(const torch::Tensor& input, const RandomKey& key,
                           const DropoutMaskOptions& options);

// Shared with the other kernels of dropout.

// The memory layout of a sample of a mask.
struct SampleLayout {
  std::int64_t channels = 1;  // innermost in memory, after the pixels; 1 = contiguous samples
  std::int64_t pixels = 1;    // elements per channel

  std::int64_t elements() const { return channels * pixels; }
};
SampleLayout sample_layout(const torch::Tensor& mask);

// One word per element of a sample, in the order of the contiguous layout.
void draw_words(const RandomKey& key, std::int64_t position, const DropoutMaskOptions& options,
                std::span<std::uint32_t> words);

}  // namespace ladder
