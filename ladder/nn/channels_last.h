// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

namespace ladder {

// Equals: tensor.contiguous(torch::MemoryFormat::ChannelsLast), with NHWC strides for one channel
// too.
//
// Convolution and pooling run fastest on channels_last (NHWC). With one channel, NCHW and NHWC are
// the same bytes, and contiguous() keeps the NCHW strides, from which a convolution chooses its
// layout. Copies only if the strides must change. tensor: [N, C, H, W].
torch::Tensor to_channels_last(const torch::Tensor& tensor);

// Equals: module.to(memory_format=torch.channels_last) of Python, for the parameters. Their values,
// identity and shapes do not change.
void use_channels_last(torch::nn::Module& module);

}  // namespace ladder
