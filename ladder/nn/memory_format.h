// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

namespace ladder {

// `tensor` [N, C, H, W] with the channels innermost in memory: channels_last, or NHWC.
//
// Convolution and pooling run fastest on it (NCHW max-pooling is scalar code on the CPU).
// Also for one channel, where NCHW and NHWC are the same bytes and PyTorch's own
// contiguous(ChannelsLast) leaves the strides as they are, so that a convolution cannot see
// which layout is meant. Copies only if the strides must change.
torch::Tensor to_channels_last(const torch::Tensor& tensor);

// Lays out every 4-dimensional parameter of `module` in channels_last. The values, the
// parameters' identity and the state dictionary's shapes stay as they are.
void use_channels_last(torch::nn::Module& module);

}  // namespace ladder
