// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace ladder {

// Equals: torch::linear(input, weight, bias), with the sums added in another order.
//
//     input [N, I], weight [O, I], bias [O] -> input * weight^T + bias [N, O]
//
// LibTorch multiplies float matrices with MKL, which uses its generic kernels on CPUs of other
// makers: a linear layer of 9216 x 128 takes twice the time there, forward and backward. LibTorch
// also contains oneDNN, for its convolutions and for linear layers rewritten by torch.compile; this
// function calls the operation of the latter.
//
// float32 on the CPU, without autocast, where LibTorch has oneDNN; any other input goes to
// torch::linear.
torch::Tensor onednn_linear(const torch::Tensor& input, const torch::Tensor& weight,
                            const torch::Tensor& bias);

}  // namespace ladder
