// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/custom_class.h>
#include <torch/types.h>

#include <cstdint>

#include "ladder/nn/dropout_mask.h"
#include "ladder/nn/sync_batch_norm.h"

namespace ladder {

// Operators for which LibTorch needs several operations, or slow ones. A layer calls them by the
// table:
//
//     x = ops().relu_max_pool2d(x, bias);
//
// Each has a body of LibTorch's operations, in the namespace `plain`, which defines its result.
// kernels/ replaces all entries in a program that links it, as ladder::ladder does: a fused
// operation for the CPU gives the result of the body up to the order of sums. It calls the body for
// inputs that it does not take.

enum class Activation { kNone, kRelu };

namespace plain {

// max_pool2d(relu(input + bias), 2), in the dtype of the input. bias: float32 [C].
torch::Tensor relu_max_pool2d(const torch::Tensor& input, const torch::Tensor& bias);

// max_pool2d(relu(conv2d(input, weight, bias)), 2). weight: float32 [D, C, 3, 3], bias: [D].
torch::Tensor conv2d_relu_max_pool2d(const torch::Tensor& input, const torch::Tensor& weight,
                                     const torch::Tensor& bias);

// conv2d(input, weight, bias, 1, padding), and relu of it with Activation::kRelu. For images of one
// channel.
torch::Tensor first_conv2d(const torch::Tensor& input, const torch::Tensor& weight,
                           const torch::Tensor& bias, std::int64_t padding, Activation activation);

// max_pool2d(relu(batch_norm(input + tensors.input_bias)), 2) in training; with `sum_over_ranks`,
// sync_batch_norm.
torch::Tensor batch_norm_relu_max_pool2d(const torch::Tensor& input,
                                         const BatchNormTensors& tensors, double momentum,
                                         double eps, const SumOverRanks& sum_over_ranks);

// flatten(images * counter_mask(images), 1).
torch::Tensor dropout_flatten(const torch::Tensor& images, const RandomKey& key,
                              const DropoutMaskOptions& options);

// linear(input, weight, bias). `products`: where a kernel puts the factors of the weight gradient
// instead of the gradient (kernels/weight_products.h); not used here.
torch::Tensor linear(const torch::Tensor& input, const torch::Tensor& weight,
                     const torch::Tensor& bias,
                     const c10::intrusive_ptr<torch::CustomClassHolder>& products);

}  // namespace plain

struct Ops {
  decltype(&plain::relu_max_pool2d) relu_max_pool2d = plain::relu_max_pool2d;
  decltype(&plain::conv2d_relu_max_pool2d) conv2d_relu_max_pool2d = plain::conv2d_relu_max_pool2d;
  decltype(&plain::first_conv2d) first_conv2d = plain::first_conv2d;
  decltype(&plain::batch_norm_relu_max_pool2d) batch_norm_relu_max_pool2d =
      plain::batch_norm_relu_max_pool2d;
  decltype(&plain::dropout_flatten) dropout_flatten = plain::dropout_flatten;
  decltype(&plain::linear) linear = plain::linear;
  decltype(&counter_mask_by_tensors) counter_mask = counter_mask_by_tensors;
};

// The table of this process. Written before main() or while one thread runs.
Ops& ops();

}  // namespace ladder
