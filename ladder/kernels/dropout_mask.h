// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <span>

namespace ladder {

// The random numbers of a training step are a function of this key.
struct RandomKey {
  std::uint64_t seed = 0;   // of the run
  std::int64_t epoch = 0;   // counts from 0
  torch::Tensor positions;  // int64 [N] on the CPU: position of each sample in the epoch's order
};

struct DropoutMaskOptions {
  double p = 0.5;          // probability that an element becomes zero; in [0, 1)
  std::int64_t layer = 0;  // one number per dropout layer of a network
};

// Equals: dropout(ones_like(input), p), with numbers from Philox instead of PyTorch's generator.
//
// float32, shape and layout of `input`, 0 or 1 / (1 - p). Each element is a function of (seed,
// epoch, position of its sample, layer, index of the element in the contiguous layout): the same on
// any rank and thread, in any batch and layout.
//
// The first dimension of `input` is the sample. On the CPU one pass on all threads; on a GPU one
// kernel (dropout_mask_cuda.h). The first mask on each GPU is compared with tensor operations,
// which waits for the GPU: if the kernel fails or its bits differ, one line warns, and that GPU
// uses tensor operations. Does not wait otherwise. Throws c10::Error unless there is one position
// per sample.
torch::Tensor counter_mask(const torch::Tensor& input, const RandomKey& key,
                           const DropoutMaskOptions& options);

// The reference, by tensor operations on the device of `input`.
torch::Tensor counter_mask_by_tensors(const torch::Tensor& input, const RandomKey& key,
                                      const DropoutMaskOptions& options);

// Shared with the other kernels of dropout: the result, uninitialised.
torch::Tensor empty_mask(const torch::Tensor& input);

// The memory layout of a sample of a mask.
struct SampleLayout {
  std::int64_t channels = 1;  // innermost in memory, after the pixels; 1 = contiguous samples
  std::int64_t pixels = 1;    // elements per channel

  std::int64_t elements() const { return channels * pixels; }
};
SampleLayout sample_layout(const torch::Tensor& mask);

// An element is dropped when its word is below the threshold.
std::uint32_t drop_threshold(const DropoutMaskOptions& options);

// The factor of the other elements.
float kept_scale(const DropoutMaskOptions& options);

// One word per element of a sample, in the order of the contiguous layout.
void draw_words(const RandomKey& key, std::int64_t position, const DropoutMaskOptions& options,
                std::span<std::uint32_t> words);

// Throws c10::Error unless there is one position per sample of `input`.
void check_positions(const torch::Tensor& input, const RandomKey& key);

}  // namespace ladder
