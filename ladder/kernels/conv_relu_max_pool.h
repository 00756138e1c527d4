// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace ladder {

// Equals: max_pool2d(relu(conv2d(input, weight, bias)), 2).
//
// Forward is oneDNN's convolution, and relu_max_pool2d. Backward does at most a quarter of the
// multiplications of a dense one: docs/performance.md, "A quarter of the work".
//
// input   [N, C, H, W], floating
// weight  float32 [D, C, 3, 3]
// bias    float32 [D]
// output  [N, D, (H - 2) / 2, (W - 2) / 2], rounded down, same layout, dtype of the input, or of
//         autocast
//
// Fast on the CPU in channels_last, float or bfloat16, with even H and W, C and D multiples of 16,
// D at most 4096; other inputs take a dense backward. In bfloat16 the weights are rounded as under
// autocast, and the gradients of weight and bias are float32 sums that are not rounded. A NaN or
// infinity of input or weight reaches a gradient only through windows that have one.
//
// The sums of backward have the same order on any number of threads, another one than PyTorch's,
// and one for each of AVX-512, AVX2 and plain code. Throws c10::Error for a bias of another size.
torch::Tensor conv2d_relu_max_pool2d(const torch::Tensor& input, const torch::Tensor& weight,
                                     const torch::Tensor& bias);

}  // namespace ladder
