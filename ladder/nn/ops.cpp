// SPDX-License-Identifier: Apache-2.0
#include "ladder/nn/ops.h"

#include <torch/utils.h>

namespace ladder {
namespace plain {

torch::Tensor relu_max_pool2d(const torch::Tensor& input, const torch::Tensor& bias) {
  const auto sum = input + bias.view({-1, 1, 1});
  return torch::max_pool2d(torch::relu(sum), 2).to(input.scalar_type());
}

torch::Tensor conv2d_relu_max_pool2d(const torch::Tensor& input, const torch::Tensor& weight,
                                     const torch::Tensor& bias) {
  return ops().relu_max_pool2d(torch::conv2d(input, weight.to(input.scalar_type())), bias);
}

torch::Tensor first_conv2d(const torch::Tensor& input, const torch::Tensor& weight,
                           const torch::Tensor& bias, std::int64_t padding, Activation activation) {
  const auto type = input.scalar_type();
  const auto output = torch::conv2d(input, weight.to(type), bias.to(type), 1, padding);
  return activation == Activation::kRelu ? torch::relu(output) : output;
}

torch::Tensor batch_norm_relu_max_pool2d(const torch::Tensor& input,
                                         const BatchNormTensors& tensors, double momentum,
                                         double eps, const SumOverRanks& sum_over_ranks) {
  const auto& shift = tensors.input_bias;
  const auto sum = shift.defined() ? input + shift.view({-1, 1, 1}).to(input.scalar_type()) : input;
  const auto images =
      sum_over_ranks ? sync_batch_norm(sum, tensors, momentum, eps, sum_over_ranks)
                     : torch::batch_norm(sum, tensors.weight, tensors.bias, tensors.running_mean,
                                         tensors.running_var, /*training=*/true, momentum, eps,
                                         at::globalContext().userEnabledCuDNN());
  return torch::max_pool2d(torch::relu(images), 2);
}

torch::Tensor dropout_flatten(const torch::Tensor& images, const RandomKey& key,
                              const DropoutMaskOptions& options) {
  const auto mask = ops().counter_mask(images.detach(), key, options);
  return torch::flatten(images * mask.to(images.scalar_type()), 1);
}

torch::Tensor linear(const torch::Tensor& input, const torch::Tensor& weight,
                     const torch::Tensor& bias,
                     const c10::intrusive_ptr<torch::CustomClassHolder>& /*products*/) {
  return torch::linear(input, weight, bias);
}

}  // namespace plain

Ops& ops() {
  static Ops table;
  return table;
}

}  // namespace ladder
