// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace ladder {

// Equals: max_pool2d(relu(conv2d(input, weight, bias)), 2).
//
// Forward is oneDNN's convolution, and relu_max_pool2d. Backward is where the time goes, and it
// does at most a quarter of the multiplications of a dense one: pooling passes on the gradient of
// one pixel in four, ReLU not even that where the largest pixel is not positive, and dropout behind
// the pooling makes more of them zero. docs/performance.md explains it.
//
// input   [N, C, H, W], floating
// weight  float32 [D, C, 3, 3]
// bias    float32 [D]
// output  [N, D, (H - 2) / 2, (W - 2) / 2], rounded down, same layout, dtype of the input, or of
//         autocast
//
// Fast on the CPU in channels_last, float or bfloat16, with even H and W, C and D multiples of 16;
// other inputs take a dense backward. In bfloat16 the gradients of weight and bias are float32
// sums, rounded nowhere. A weight of NaN or infinity that no gradient reaches does not spread.
//
// Sums have another order than PyTorch's, the same on any number of threads; on processors with
// AVX-512, with AVX2 and others, it is not the same. Throws c10::Error for a bias of another size.
torch::Tensor conv2d_relu_max_pool2d(const torch::Tensor& input, const torch::Tensor& weight,
                                     const torch::Tensor& bias);

}  // namespace ladder
