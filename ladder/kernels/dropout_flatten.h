// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include "ladder/kernels/dropout_mask.h"

namespace ladder {

// Equals: flatten(images * counter_mask(images), 1), bit for bit.
//
//     [N, C, H, W] in channels_last -> [N, C * H * W]
//
// The separate operations pass over all elements three times in each direction: mask, product, and
// the copy to NCHW order that flatten makes. This operation draws one byte per element and scales
// and reorders in one pass, and likewise in backward.
//
// Fast for float and bfloat16 on the CPU in channels_last; other inputs take the separate
// operations.
torch::Tensor dropout_flatten(const torch::Tensor& images, const RandomKey& key,
                              const DropoutMaskOptions& options);

}  // namespace ladder
