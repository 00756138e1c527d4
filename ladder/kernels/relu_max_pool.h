// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace ladder {

// Equals: max_pool2d(relu(input + bias), 2), bit for bit.
//
// Everything that follows a convolution without bias, in one operation. PyTorch passes four times
// over the memory of a large activation here: ReLU and pooling forward, and both backward, where
// the gradient is first spread over all pixels and then multiplied by a mask. Of the four pixels of
// a window only the largest matters, and only if it is above zero. This operation keeps one byte
// per window, which of the four it was or that there was none, and backward writes the whole
// gradient in one pass.
//
// The bias is added here because oneDNN, asked for the gradient of a convolution's bias, takes a
// slower path for its whole backward: 2 ms of a 20 ms step. Here that gradient is one more sum.
//
// input   [N, C, H, W], floating. Fast on the CPU in channels_last, float or bfloat16, with even H
//         and W; any other goes through PyTorch's operations.
// bias    float32 [C]
// output  [N, C, H / 2, W / 2], rounded down, same dtype and layout
//
// Bit-equal forward and backward, ties and NaN included: the first of equal pixels gets the
// gradient, and a NaN is the largest of its window. Two exceptions: the gradient of the bias is a
// sum in another order; and in bfloat16 a convolution without bias rounds before the bias is added,
// one with a bias afterwards. Runs on all threads of ATen. Throws c10::Error for a bias of another
// size.
torch::Tensor relu_max_pool2d(const torch::Tensor& input, const torch::Tensor& bias);

}  // namespace ladder
