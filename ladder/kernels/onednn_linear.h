// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include "ladder/kernels/weight_products.h"

namespace ladder {

// Equals: torch::linear(input, weight, bias), with the sums added in another order.
//
//     input [N, I], weight [O, I], bias [O] -> input * weight^T + bias [N, O]
//
// LibTorch multiplies float matrices with MKL, which uses generic kernels on CPUs not made by
// Intel: there a large linear layer takes up to twice the time, forward and backward. This function
// calls the oneDNN operation that LibTorch contains for linear layers rewritten by torch.compile.
//
// Backward computes no weight gradient if it can put the factors in `products`, a WeightProducts,
// instead (see weight_products.h).
//
// float32 on the CPU, without autocast, where LibTorch has oneDNN; other inputs take torch::linear.
torch::Tensor onednn_linear(const torch::Tensor& input, const torch::Tensor& weight,
                            const torch::Tensor& bias,
                            const c10::intrusive_ptr<torch::CustomClassHolder>& products = {});

}  // namespace ladder
