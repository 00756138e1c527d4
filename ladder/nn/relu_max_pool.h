// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace ladder {

// max_pool2d(relu(input + bias), 2), as one operation: all that follows a convolution without bias.
//
// PyTorch walks the memory of a large activation four times here: ReLU and pooling forward, and
// both backward, where the gradient is first spread over all pixels and then multiplied by a
// mask. Of a window of four pixels only the largest matters, and only if it is above zero. So this
// keeps one byte a window, which of the four it was or that none was, and backward writes the
// whole gradient in one pass.
//
// The bias is added here because oneDNN, asked for the gradient of a convolution's bias, takes a
// slower way for all of its backward: 2 ms of a step of 20. Here that gradient is one more sum.
//
// input   [N, C, H, W], floating. Fast on the CPU in channels_last, float or bfloat16, with even H
//         and W; any other goes through PyTorch's operations.
// bias    float32 [C]
// output  [N, C, H / 2, W / 2], rounded down, same dtype and layout
//
// Bit-equal to the three operations, forward and backward, ties and NaN included: the first of
// equal pixels gets the gradient, and a NaN wins its window. Only the gradient of the bias is a sum
// in another order. Runs on all threads of ATen. In bfloat16 a convolution without bias rounds
// before the bias is added, one with it afterwards.
// Throws c10::Error for a bias of another size.
torch::Tensor relu_max_pool2d(const torch::Tensor& input, const torch::Tensor& bias);

}  // namespace ladder
