// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace ladder {

// Equals: max_pool2d(relu(input + bias), 2), bit for bit.
//
// For the output of a convolution without bias, because oneDNN's backward is slower as a whole if
// it computes the gradient of a bias. Keeps one byte per window for the backward, and passes over
// the activation once in each direction, PyTorch twice.
//
// input   [N, C, H, W], floating. Fast on the CPU in channels_last, float or bfloat16, with even H
//         and W; other inputs take PyTorch's operations.
// bias    float32 [C]
// output  [N, C, H / 2, W / 2], rounded down, same dtype and layout
//
// Bit-equal forward and backward: the first of equal pixels gets the gradient, and a NaN is the
// largest of its window. Two exceptions: the gradient of the bias is a sum in another order, and in
// bfloat16 the convolution rounds before the bias is added. Runs on all threads of ATen. Throws
// c10::Error for a bias of another size.
torch::Tensor relu_max_pool2d(const torch::Tensor& input, const torch::Tensor& bias);

// The output, and the byte of each window: 0 to 3 = the pixel that won, 4 = none above zero.
struct PooledWithChoices {
  torch::Tensor output;
  torch::Tensor choices;  // uint8, shape and layout of the output
};

// relu_max_pool2d without its backward, for operations that have a backward of their own. `input`
// must be one that relu_max_pool2d is fast for.
PooledWithChoices relu_max_pool2d_with_choices(const torch::Tensor& input,
                                               const torch::Tensor& bias);

}  // namespace ladder
