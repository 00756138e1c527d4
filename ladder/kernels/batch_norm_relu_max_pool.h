// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include "ladder/nn/sync_batch_norm.h"

namespace ladder {

// Equals: max_pool2d(relu(batch_norm(input)), 2) in training.
//
// Does not write the normalised images. Forward and backward read the input twice each: once for
// sums per channel, once for the result. PyTorch's three operations pass over memory 15 times.
//
// The bias of a convolution in front is best added here, as `input_bias`: normalising removes it
// again, so that it only moves the running mean, and its gradient is exactly zero.
//
// With `sum_over_ranks`, mean and variance are those of the batches of all ranks, and forward and
// backward are collectives, as in sync_batch_norm.
//
// input   [N, C, H, W], C a multiple of 8; further limits: can_fuse_batch_norm
// output  [N, C, H / 2, W / 2], same dtype and layout
//
// Mean and variance are float64 sums over fixed groups of rows, added in order: the same bits on
// any number of threads. PyTorch's results differ by 1e-6 (relative). Throws UsageError, on all
// ranks, unless there is more than one value per channel.
torch::Tensor batch_norm_relu_max_pool2d(const torch::Tensor& input,
                                         const BatchNormTensors& tensors, double momentum,
                                         double eps, const SumOverRanks& sum_over_ranks = {});

// Whether the function above takes the shape, dtype and layout of `input`.
bool can_fuse_batch_norm(const torch::Tensor& input);

}  // namespace ladder
