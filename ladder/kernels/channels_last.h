// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

namespace ladder {

// Equals: tensor.contiguous(torch::MemoryFormat::ChannelsLast), with these strides for one channel
// too.
//
// Convolution and pooling run fastest on channels_last (NHWC); NCHW max-pooling is scalar code on
// the CPU. With one channel, NCHW and NHWC are the same bytes, and PyTorch's own contiguous() keeps
// the strides, so a convolution cannot see which layout is meant. Copies only if the strides must
// change. tensor: [N, C, H, W].
torch::Tensor to_channels_last(const torch::Tensor& tensor);

// Lays out every 4-dimensional parameter of `module` in channels_last. Values, identity of the
// parameters and shapes in the state dictionary stay as they are.
void use_channels_last(torch::nn::Module& module);

}  // namespace ladder
