// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include "ladder/nn/sync_batch_norm.h"

namespace ladder {

// max_pool2d(relu(batch_norm(input)), 2) while training, as one operation.
//
// The normalised images are never written. Forward reads the input twice, once for mean and
// variance and once for the windows' largest values; backward reads it twice, once for the two sums
// that the gradient needs and once for the gradient itself. PyTorch's three operations pass over
// memory 15 times.
//
// With a group, mean and variance are those of the batches of all its ranks, and forward and
// backward are collectives, as in sync_batch_norm.
//
// input   [N, C, H, W] with C a multiple of 8; else as relu_max_pool2d wants it
// (can_fuse_batch_norm) output  [N, C, H / 2, W / 2], same dtype and layout
//
// Mean and variance are sums in double, taken over fixed groups of rows and added in their order:
// the same bits on any number of threads. Against PyTorch, last bits differ (1e-6 relative). Throws
// UsageError, on all ranks, if there is no more than one value a channel.
torch::Tensor batch_norm_relu_max_pool2d(const torch::Tensor& input,
                                         const BatchNormTensors& tensors, double momentum,
                                         double eps,
                                         const ProcessGroup& group = ProcessGroup::single());

// Whether `input` has the form that this is written for.
bool can_fuse_batch_norm(const torch::Tensor& input);

}  // namespace ladder
