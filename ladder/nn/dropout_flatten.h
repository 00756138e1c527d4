// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include "ladder/nn/dropout.h"
#include "ladder/nn/random_scope.h"

namespace ladder {

// flatten(dropout(images), 1) as one operation: what stands between BasicNet's images and fc1.
//
//     [N, C, H, W] in channels_last -> [N, C * H * W], each sample's channels one after the other
//
// Two operations walk over all elements three times in each direction: the mask is written, the
// product is taken, and flatten copies, because the weights of fc1 count pixels within channels
// and channels_last has it the other way round. This one draws a byte an element, scales and turns
// in one pass, and turns the gradient back in another. Same mask (see RandomScope), same bits.
//
// float or bfloat16 on the CPU; all else goes through the operations it stands for.
torch::Tensor dropout_flatten(const torch::Tensor& images, const RandomKey& key,
                              const DropoutOptions& options);

}  // namespace ladder
