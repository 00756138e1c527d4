// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include "ladder/kernels/dropout_mask.h"

namespace ladder {

// Equals: flatten(images * counter_mask(images), 1), bit for bit.
//
//     [N, C, H, W] in channels_last -> [N, C * H * W], the channels of a sample one after the other
//
// As separate operations these pass over all elements three times in each direction: the mask is
// written, the product is taken, and flatten copies, because a linear layer's weights count pixels
// within channels and channels_last stores channels within pixels. This operation draws one byte
// per element, scales and reorders in one pass, and reorders the gradient in another.
//
// Fast for float and bfloat16 on the CPU in channels_last; any other input goes through the
// separate operations.
torch::Tensor dropout_flatten(const torch::Tensor& images, const RandomKey& key,
                              const DropoutMaskOptions& options);

}  // namespace ladder
