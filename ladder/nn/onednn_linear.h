// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace ladder {

// torch::linear by the matrix products of oneDNN.
//
//     input [N, I], weight [O, I], bias [O] -> input * weight^T + bias [N, O]
//
// LibTorch gives products of floats to MKL, which on CPUs of other makers takes its generic kernel:
// BasicNet's fc1 takes twice the time there, forward and backward. LibTorch brings oneDNN along for
// its convolutions, and for linear layers that torch.compile has rewritten; this calls the same
// operation. Same formula; the sums are added in another order.
//
// float32 on the CPU, without autocast, where LibTorch has oneDNN; all else is torch::linear.
torch::Tensor onednn_linear(const torch::Tensor& input, const torch::Tensor& weight,
                            const torch::Tensor& bias);

}  // namespace ladder
