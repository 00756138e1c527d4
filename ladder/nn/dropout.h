// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>

#include "ladder/core/math.h"
#include "ladder/nn/random_scope.h"

namespace ladder {

struct DropoutOptions {
  double p = 0.5;          // chance of an element to become zero; in [0, 1)
  std::int64_t layer = 0;  // tells the dropout layers of one network apart
  Math math = Math::kFast;
};

// Sets elements to zero at random while training and scales the others by 1 / (1 - p).
//
// Two sources of masks. Reference: PyTorch's generator, bit-equal to torch.nn.Dropout in
// Python after the same manual_seed; on the CPU it draws one number after the other on
// one thread. Fast: Philox by counter (see RandomScope), on all threads, the same mask on
// every device and in every memory layout.
//
// Input: any floating dtype; in fast math the first dimension is the sample and must be as
// long as the scope's positions. Identity in evaluation mode. Keeps the memory layout.
class Dropout : public torch::nn::Module {
 public:
  // Throws UsageError unless 0 <= p < 1.
  explicit Dropout(DropoutOptions options);

  torch::Tensor forward(const torch::Tensor& input) const;

  // flatten(forward(images), 1); in fast math one operation (see dropout_flatten).
  torch::Tensor forward_flatten(const torch::Tensor& images) const;

 private:
  DropoutOptions options_;
};

// The mask of fast math: float32, shape and layout of `input`, 0 or 1 / (1 - p).
// On the CPU in one pass over all threads; elsewhere by tensor operations, with equal bits.
torch::Tensor counter_mask(const torch::Tensor& input, const RandomKey& key,
                           const DropoutOptions& options);

// The same by tensor operations on the device of `input`: what a GPU runs.
torch::Tensor counter_mask_by_tensors(const torch::Tensor& input, const RandomKey& key,
                                      const DropoutOptions& options);

}  // namespace ladder
