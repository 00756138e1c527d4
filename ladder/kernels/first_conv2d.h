// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>

#include "ladder/nn/ops.h"

namespace ladder {

// Equals: conv2d(input, weight, bias, 1, padding), and relu of it with Activation::kRelu.
//
// For the first layer of a network: images of one channel, without a gradient. There oneDNN spends
// more time on reordering than on arithmetic. Here the weights of 16 channels, or of 8, stay in
// registers, forward as factors and backward as sums; ReLU, its mask and the gradient of the bias
// are part of the same passes.
//
// input   [N, 1, H, W], floating
// weight  float32 [C, 1, K, K]
// bias    float32 [C]
// output  [N, C, H + 2 padding - K + 1, ...] in channels_last, dtype of the input, or of autocast
//
// Fast on the CPU for an input without gradient, float or bfloat16, K = 3 or 5, C a multiple of 16;
// other inputs take PyTorch's operations. Runs on all threads of ATen; the same bits on any number
// of them. Throws c10::Error for a bias of another size.
torch::Tensor first_conv2d(const torch::Tensor& input, const torch::Tensor& weight,
                           const torch::Tensor& bias, std::int64_t padding, Activation activation);

}  // namespace ladder
