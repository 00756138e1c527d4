// SPDX-License-Identifier: Apache-2.0
#include "ladder/nn/sync_batch_norm.h"

#include <ATen/AccumulateType.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/utils.h>

#include <vector>

#include "ladder/core/error.h"
#include "ladder/nn/create_graph.h"

namespace ladder {
namespace {

// Of the batch of all ranks, in float64; equal on all ranks.
struct Moments {
  torch::Tensor mean;    // [C]
  torch::Tensor invstd;  // [C], 1 / sqrt(variance + eps)
  torch::Tensor count;   // [1], values per channel
};

// Sums over a rank's batch for the gradient of the input; float64 [C].
struct GradientSums {
  torch::Tensor dy;
  torch::Tensor dy_xmu;  // dy · (x - mean)
};

std::vector<std::int64_t> all_but_channels(const torch::Tensor& input) {
  std::vector<std::int64_t> dims = {0};
  for (std::int64_t dim = 2; dim < input.dim(); ++dim) dims.push_back(dim);
  return dims;
}

// [C] as [1, C, 1, 1].
torch::Tensor per_channel(const torch::Tensor& values, const torch::Tensor& input) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = values.size(0);
  return values.to(torch::kFloat64).view(shape);
}

torch::Tensor as_float64(const torch::Tensor& tensor) {
  return tensor.to(torch::kFloat64, /*non_blocking=*/false, /*copy=*/true);
}

// x - mean, in float64.
torch::Tensor centred(const torch::Tensor& input, const Moments& moments) {
  return as_float64(input).sub_(per_channel(moments.mean, input));
}

torch::Tensor sums_on_cpu(const torch::Tensor& input) {
  const auto dims = all_but_channels(input);
  const auto x = as_float64(input);
  const auto count = static_cast<double>(input.numel()) / static_cast<double>(input.size(1));
  return torch::cat({x.sum(dims), x.square().sum(dims), torch::tensor({count}, torch::kFloat64)});
}

// The dtype of all but the images for the kernels of a GPU, which convert nothing.
torch::ScalarType dtype_on_gpu(const torch::Tensor& input) {
  return at::toAccumulateType(input.scalar_type(), torch::kCUDA);
}

torch::Tensor sums_on_gpu(const torch::Tensor& input, double eps) {
  const auto options = input.options().dtype(torch::kFloat64);
  if (input.numel() == 0) return torch::zeros({2 * input.size(1) + 1}, options);
  const auto [batch_mean, invstd] = at::batch_norm_stats(input, eps);
  const auto mean = batch_mean.to(torch::kFloat64);
  const auto variance = invstd.to(torch::kFloat64).square().reciprocal() - eps;
  const double count = static_cast<double>(input.numel()) / static_cast<double>(input.size(1));
  return torch::cat(
      {mean * count, (variance + mean.square()) * count, torch::full({1}, count, options)});
}

// The kernels of LibTorch's own layer on the CPU, in float32.
bool takes_kernels(const torch::Tensor& input, const torch::Tensor& weight, SyncMath math) {
  return math == SyncMath::kKernels && input.is_cpu() && input.numel() > 0 &&
         input.scalar_type() == torch::kFloat32 && weight.scalar_type() == torch::kFloat32;
}

torch::Tensor sums_by_kernels(const torch::Tensor& input) {
  const auto [mean, variance] = at::batch_norm_update_stats(input, {}, {}, /*momentum=*/0.0);
  const auto count = static_cast<double>(input.numel()) / static_cast<double>(input.size(1));
  const auto wide = mean.to(torch::kFloat64);
  return torch::cat(
      {wide * count, (variance + wide.square()) * count, torch::tensor({count}, torch::kFloat64)});
}

// input · slope + offset, per channel.
torch::Tensor affine(const torch::Tensor& input, const torch::Tensor& slope,
                     const torch::Tensor& offset) {
  const auto none = torch::zeros({slope.size(0)});
  return std::get<0>(at::native_batch_norm(input, slope.to(torch::kFloat32),
                                           offset.to(torch::kFloat32), none, none + 1.0,
                                           /*training=*/false, /*momentum=*/0.0, /*eps=*/0.0));
}

torch::Tensor normalize(const torch::Tensor& input, const torch::Tensor& weight,
                        const torch::Tensor& bias, const Moments& moments, double eps,
                        SyncMath math) {
  if (input.numel() == 0) return torch::empty_like(input);
  if (takes_kernels(input, weight, math)) {
    const auto slope = moments.invstd * weight;
    return affine(input, slope, bias - moments.mean * slope);
  }
  if (input.is_cuda()) {
    const auto dtype = dtype_on_gpu(input);
    return at::batch_norm_elemt(input, weight.to(dtype), bias.to(dtype), moments.mean.to(dtype),
                                moments.invstd.to(dtype), eps);
  }
  const auto scale = moments.invstd * weight;
  return centred(input, moments)
      .mul_(per_channel(scale, input))
      .add_(per_channel(bias, input))
      .to(input.scalar_type());
}

GradientSums sums_of_gradient(const torch::Tensor& gradient, const torch::Tensor& input,
                              const torch::Tensor& weight, const Moments& moments, SyncMath math) {
  if (takes_kernels(input, weight, math)) {
    const auto sums = at::native_batch_norm_backward(
        gradient, input, weight, {}, {}, moments.mean.to(torch::kFloat32),
        moments.invstd.to(torch::kFloat32), /*train=*/true, /*eps=*/0.0, {false, true, true});
    return {std::get<2>(sums).to(torch::kFloat64), std::get<1>(sums) / moments.invstd};
  }
  if (input.is_cuda() && input.numel() > 0) {
    const auto dtype = dtype_on_gpu(input);
    const auto sums = at::batch_norm_backward_reduce(
        gradient, input, moments.mean.to(dtype), moments.invstd.to(dtype), weight.to(dtype),
        /*input_g=*/true, /*weight_g=*/false, /*bias_g=*/false);
    return {std::get<0>(sums).to(torch::kFloat64), std::get<1>(sums).to(torch::kFloat64)};
  }
  const auto dims = all_but_channels(input);
  const auto dy = as_float64(gradient);
  return {dy.sum(dims), centred(input, moments).mul_(dy).sum(dims)};
}

// weight · invstd · (dy - mean of dy - (x - mean) · invstd² · mean of dy · (x - mean)), where the
// means are those of all ranks.
torch::Tensor input_gradient(const torch::Tensor& gradient, const torch::Tensor& input,
                             const torch::Tensor& weight, const Moments& moments,
                             const GradientSums& total, SyncMath math) {
  if (input.numel() == 0) return torch::empty_like(input);
  if (input.is_cuda()) {
    const auto dtype = dtype_on_gpu(input);
    return at::batch_norm_backward_elemt(
        gradient, input, moments.mean.to(dtype), moments.invstd.to(dtype), weight.to(dtype),
        total.dy.to(dtype), total.dy_xmu.to(dtype), moments.count.to(torch::kInt32));
  }
  const auto slope = moments.invstd.square() * total.dy_xmu / moments.count;
  if (takes_kernels(input, weight, math)) {
    const auto scale = moments.invstd * weight;
    const auto offset = scale * (slope * moments.mean - total.dy / moments.count);
    return affine(gradient, scale, offset)
        .add_(affine(input, -slope * scale, torch::zeros_like(scale)));
  }
  return centred(input, moments)
      .mul_(per_channel(-slope, input))
      .add_(gradient)
      .sub_(per_channel(total.dy / moments.count, input))
      .mul_(per_channel(moments.invstd * weight, input))
      .to(input.scalar_type());
}

class Normalize : public torch::autograd::Function<Normalize> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* ctx, const torch::Tensor& input,
                               const torch::Tensor& weight, const torch::Tensor& bias,
                               const Moments& moments, double eps, const SumOverRanks& sum,
                               SyncMath math) {
    ctx->saved_data["math"] = static_cast<std::int64_t>(math);
    ctx->save_for_backward({input, weight, moments.mean, moments.invstd, moments.count});
    ctx->saved_data["sum"] =
        c10::IValue::make_capsule(c10::make_intrusive<SumOverRanksHolder>(sum));
    return normalize(input, weight, bias, moments, eps, math);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& outputs) {
    refuse_create_graph("SyncBatchNorm");
    const auto saved = ctx->get_saved_variables();
    const auto& input = saved[0];
    const auto& weight = saved[1];
    const Moments moments{saved[2], saved[3], saved[4]};
    const auto gradient = outputs[0].contiguous(input.suggest_memory_format());
    const auto math = static_cast<SyncMath>(ctx->saved_data["math"].toInt());
    const auto local = sums_of_gradient(gradient, input, weight, moments, math);
    torch::autograd::variable_list gradients(7);
    if (ctx->needs_input_grad(0)) {
      const auto holder = ctx->saved_data["sum"].toCapsule();
      const auto& sum = static_cast<const SumOverRanksHolder&>(*holder).sum;
      const auto total = sum(torch::cat({local.dy, local.dy_xmu})).chunk(2);
      gradients[0] = input_gradient(gradient, input, weight, moments, {total[0], total[1]}, math);
    }
    gradients[1] = (local.dy_xmu * moments.invstd).to(weight.scalar_type());
    gradients[2] = local.dy.to(weight.scalar_type());
    return gradients;
  }
};

}  // namespace

void require_several_values(double count) {
  if (count > 1.0) return;
  throw UsageError::out_of_range("BatchNorm", static_cast<std::int64_t>(count),
                                 "more than one value per channel, over all ranks, while training",
                                 "use a larger batch");
}

torch::Tensor sync_batch_norm(const torch::Tensor& input, const BatchNormTensors& tensors,
                              double momentum, double eps, const SumOverRanks& sum, SyncMath math) {
  const auto x = input.contiguous(input.suggest_memory_format());
  Moments moments;
  {
    const torch::NoGradGuard no_grad;
    const auto sums = sum(x.is_cuda()                              ? sums_on_gpu(x, eps)
                          : takes_kernels(x, tensors.weight, math) ? sums_by_kernels(x)
                                                                   : sums_on_cpu(x));
    const auto parts = sums.split_with_sizes({x.size(1), x.size(1), 1});
    moments.count = parts[2];
    // On a GPU, item() would wait for the device.
    if (moments.count.is_cpu()) require_several_values(moments.count.item<double>());
    moments.mean = parts[0] / moments.count;
    const auto variance = (parts[1] / moments.count - moments.mean.square()).clamp_min(0.0);
    moments.invstd = (variance + eps).rsqrt();
    const auto unbiased = variance * moments.count / (moments.count - 1.0).clamp_min(1.0);
    const auto dtype = tensors.running_mean.scalar_type();
    tensors.running_mean.mul_(1.0 - momentum).add_(moments.mean.to(dtype), momentum);
    tensors.running_var.mul_(1.0 - momentum).add_(unbiased.to(dtype), momentum);
  }
  return Normalize::apply(x, tensors.weight, tensors.bias, moments, eps, sum, math);
}

}  // namespace ladder
