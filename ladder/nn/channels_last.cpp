// SPDX-License-Identifier: Apache-2.0
#include "ladder/nn/channels_last.h"

#include <torch/utils.h>

namespace ladder {

torch::Tensor to_channels_last(const torch::Tensor& tensor) {
  const auto sizes = tensor.sizes();
  const std::vector<std::int64_t> strides = {sizes[1] * sizes[2] * sizes[3], 1, sizes[3] * sizes[1],
                                             sizes[1]};
  if (tensor.strides() == c10::IntArrayRef(strides)) return tensor;
  if (sizes[1] == 1 && tensor.is_contiguous()) return tensor.as_strided(sizes, strides);
  return torch::empty_strided(sizes, strides, tensor.options()).copy_(tensor);
}

void use_channels_last(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : module.parameters()) {
    if (parameter.dim() == 4) parameter.set_data(to_channels_last(parameter.detach()));
  }
}

}  // namespace ladder
