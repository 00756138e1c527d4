// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <vector>

namespace ladder {

// Equals: tensor.contiguous(torch::MemoryFormat::ChannelsLast), with NHWC strides for one channel
// too.
//
// Convolution and pooling run fastest on channels_last (NHWC). With one channel, NCHW and NHWC are
// the same bytes, and contiguous() keeps the NCHW strides, from which a convolution chooses its
// layout. Copies only if the strides must change. tensor: [N, C, H, W].
inline torch::Tensor to_channels_last(const torch::Tensor& tensor) {
  const auto sizes = tensor.sizes();
  const std::vector<std::int64_t> strides = {sizes[1] * sizes[2] * sizes[3], 1, sizes[3] * sizes[1],
                                             sizes[1]};
  if (tensor.strides() == c10::IntArrayRef(strides)) return tensor;
  if (sizes[1] == 1 && tensor.is_contiguous()) return tensor.as_strided(sizes, strides);
  return torch::empty_strided(sizes, strides, tensor.options()).copy_(tensor);
}

// Equals: module.to(memory_format=torch.channels_last) of Python, for the parameters. Their values,
// identity and shapes do not change.
inline void use_channels_last(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : module.parameters()) {
    if (parameter.dim() == 4) parameter.set_data(to_channels_last(parameter.detach()));
  }
}

}  // namespace ladder
