// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>

#include "ladder/nn/dropout_mask.h"

namespace ladder {

// The source of a dropout layer's masks.
enum class DropoutMasks {
  kByPosition,   // Philox: a function of the sample's position in the epoch (see RandomScope)
  kByGenerator,  // PyTorch's generator: bit-equal to torch.nn.Dropout after the same manual_seed
};

struct DropoutOptions {
  double p = 0.5;          // probability that an element becomes zero; in [0, 1)
  std::int64_t layer = 0;  // one number per dropout layer of a network; 0 = it has one such layer
  DropoutMasks masks = DropoutMasks::kByPosition;
};

// Sets elements to zero at random while training and scales the others by 1 / (1 - p).
//
// kByPosition draws masks on all threads, the same on every device and rank and in every memory
// layout; a training forward needs a RandomScope around it, and the first dimension of the input is
// the sample. Two layers of one number have equal masks, and so has each forward of a layer within
// one scope; two layers with the number 0 in one scope are a UsageError. kByGenerator draws one
// number after the other on one thread.
//
// Input: any floating dtype. Identity in evaluation mode. Keeps the memory layout.
class Dropout : public torch::nn::Module {
 public:
  // Throws UsageError unless 0 <= p < 1.
  explicit Dropout(DropoutOptions options);

  torch::Tensor forward(const torch::Tensor& input) const;

  // flatten(forward(images), 1); kByPosition in one operation (ops.h).
  torch::Tensor forward_flatten(const torch::Tensor& images) const;

  const DropoutOptions& options() const { return options_; }

 private:
  const RandomKey& key() const;

  DropoutOptions options_;
  DropoutMaskOptions mask_options_;
};

}  // namespace ladder
