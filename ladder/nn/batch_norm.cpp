// SPDX-License-Identifier: Apache-2.0
#include "ladder/nn/batch_norm.h"

#include "ladder/nn/ops.h"

namespace ladder {

BatchNormImpl::BatchNormImpl(BatchNormOptions options)
    : weight(register_parameter("weight", torch::ones(options.features))),
      bias(register_parameter("bias", torch::zeros(options.features))),
      running_mean(register_buffer("running_mean", torch::zeros(options.features))),
      running_var(register_buffer("running_var", torch::ones(options.features))),
      num_batches_tracked(
          register_buffer("num_batches_tracked", torch::tensor(0, torch::dtype(torch::kInt64)))),
      options_(options) {}

double BatchNormImpl::update_weight() {
  if (!is_training()) return 0.0;
  num_batches_tracked.add_(1);
  if (options_.momentum) return *options_.momentum;
  return 1.0 / static_cast<double>(num_batches_tracked.item<std::int64_t>());
}

torch::Tensor BatchNormImpl::normalize(const torch::Tensor& input, const BatchNormTensors& tensors,
                                       double momentum) {
  if (is_training() && sum_ && *sum_) {
    return sync_batch_norm(input, tensors, momentum, options_.eps, *sum_);
  }
  if (is_training() && input.numel() == input.size(1)) require_several_values(1.0);
  return torch::batch_norm(input, weight, bias, tensors.running_mean, tensors.running_var,
                           is_training(), momentum, options_.eps,
                           at::globalContext().userEnabledCuDNN());
}

torch::Tensor BatchNormImpl::forward(const torch::Tensor& input) {
  const bool averages = is_training() && !options_.momentum;
  if (!averages || num_batches_tracked.is_cpu()) {
    return normalize(input, {weight, bias, running_mean, running_var}, update_weight());
  }
  // The weight of this batch is 1 / num_batches_tracked, which is on the GPU: reading it would
  // wait.
  num_batches_tracked.add_(1);
  const BatchNormTensors of_batch = {weight, bias, torch::zeros_like(running_mean),
                                     torch::zeros_like(running_var)};
  const auto output = normalize(input, of_batch, /*momentum=*/1.0);
  const auto share = num_batches_tracked.to(running_mean.scalar_type()).reciprocal();
  running_mean.lerp_(of_batch.running_mean, share);
  running_var.lerp_(of_batch.running_var, share);
  return output;
}

torch::Tensor BatchNormImpl::forward_relu_max_pool2d(const torch::Tensor& input,
                                                     const torch::Tensor& input_bias) {
  TORCH_CHECK(!input_bias.defined() || input_bias.numel() == input.size(1),
              "forward_relu_max_pool2d: expected an input_bias of [", input.size(1), "], got ",
              input_bias.sizes());
  const bool shared = sum_ && *sum_;
  if (is_training() && input.is_cpu() && (shared || input.numel() > 0)) {
    return ops().batch_norm_relu_max_pool2d(
        input, {weight, bias, running_mean, running_var, input_bias}, update_weight(), options_.eps,
        shared ? *sum_ : SumOverRanks());
  }
  const auto sum =
      input_bias.defined() ? input + input_bias.view({-1, 1, 1}).to(input.scalar_type()) : input;
  const auto images = forward(sum);
  return images.is_cpu()
             ? ops().relu_max_pool2d(images, torch::zeros({images.size(1)}, torch::kFloat))
             : torch::max_pool2d(torch::relu(images), 2);
}

}  // namespace ladder
