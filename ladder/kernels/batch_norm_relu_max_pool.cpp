// SPDX-License-Identifier: Apache-2.0
#include "ladder/kernels/batch_norm_relu_max_pool.h"

#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "ladder/core/simd.h"
#include "ladder/kernels/batch_norm_passes.h"
#include "ladder/kernels/pool_windows.h"
#include "ladder/nn/create_graph.h"
#include "ladder/nn/ops.h"

namespace ladder {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using namespace kernels;

// The passes over all images, on all threads; batch_norm_passes.h has them over one row.
enum class Phase { kMoments, kPool, kGradientSums, kGradient };

// The tensors of a call, and three numbers per channel, whose meaning depends on the phase.
struct BatchNormBuffers {
  torch::Tensor input;
  torch::Tensor pooled;   // the output, or its gradient
  torch::Tensor choices;  // of each window
  torch::Tensor gradient;
  std::vector<float> a;
  std::vector<float> b;
  std::vector<float> d;
};

constexpr std::int64_t kGroups = 64;  // of rows whose sums are added in order

template <typename T>
[[gnu::always_inline]] inline void do_phase(Phase phase, const RowArgs<T>& args) {
  if (phase == Phase::kMoments) return add_moments(args);
  if (phase == Phase::kGradientSums) return add_gradients(args);
  ArgmaxBlock argmax;
  const std::int64_t block = block_of(args.row.channels);
  for (std::int64_t first = 0; first < args.row.windows; first += block) {
    const std::int64_t windows = std::min(block, args.row.windows - first);
    if (phase == Phase::kPool) pool(args, first, windows, argmax);
    if (phase == Phase::kGradient) write_gradient(args, first, windows, argmax);
  }
}

LADDER_SIMD_V3
void do_row(Phase phase, const RowArgs<float>& args) { do_phase(phase, args); }

LADDER_SIMD_V3
void do_row(Phase phase, const RowArgs<Bfloat16Bits>& args) { do_phase(phase, args); }

template <typename T>
// NOLINTNEXTLINE(readability-non-const-parameter): the result, which depends on T, takes `sums`
RowArgs<T> row_args(const BatchNormBuffers& buffers, std::int64_t i, double* sums) {
  const Row row = row_of(buffers.choices);
  const auto data = [](const torch::Tensor& tensor) {
    return tensor.defined() ? static_cast<T*>(tensor.data_ptr()) : nullptr;
  };
  T* const gradient = data(buffers.gradient);
  return {.row = row,
          .input = data(buffers.input) + 2 * i * row.pixels(),
          .pooled = data(buffers.pooled) + i * row.pooled(),
          .choice = buffers.choices.data_ptr<std::uint8_t>() + i * row.pooled(),
          .gradient = gradient == nullptr ? nullptr : gradient + 2 * i * row.pixels(),
          .a = buffers.a.data(),
          .b = buffers.b.data(),
          .d = buffers.d.data(),
          .sums = sums};
}

void do_rows(Phase phase, const BatchNormBuffers& buffers, std::int64_t begin, std::int64_t end,
             double* sums) {
  const bool bfloat16 = buffers.input.scalar_type() == torch::kBFloat16;
  for (std::int64_t i = begin; i < end; ++i) {
    if (bfloat16) {
      do_row(phase, row_args<Bfloat16Bits>(buffers, i, sums));
    } else {
      do_row(phase, row_args<float>(buffers, i, sums));
    }
  }
}

// All but the gradient; the numbers are 0.
BatchNormBuffers buffers_for(const torch::Tensor& input, const torch::Tensor& pooled,
                             const torch::Tensor& choices) {
  const std::vector<float> numbers(static_cast<std::size_t>(input.size(1)));
  return {input, pooled, choices, {}, numbers, numbers, numbers};
}

void for_all_rows(Phase phase, const BatchNormBuffers& buffers) {
  at::parallel_for(0, rows_of(buffers.choices), 8, [&](std::int64_t begin, std::int64_t end) {
    do_rows(phase, buffers, begin, end, nullptr);
  });
}

// Two sums per channel, [2][C]: the same bits on any number of threads.
std::vector<double> sums_of_rows(Phase phase, const BatchNormBuffers& buffers) {
  const std::int64_t rows = rows_of(buffers.choices);
  const auto width = static_cast<std::size_t>(2 * buffers.choices.size(1));
  std::vector<double> parts(kGroups * width);
  at::parallel_for(0, kGroups, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t group = begin; group < end; ++group) {
      do_rows(phase, buffers, group * rows / kGroups, (group + 1) * rows / kGroups,
              parts.data() + static_cast<std::size_t>(group) * width);
    }
  });
  std::vector<double> sums(width);
  for (std::size_t i = 0; i < parts.size(); ++i) sums[i % width] += parts[i];
  return sums;
}

double pixels_of(const torch::Tensor& images) {
  return static_cast<double>(images.numel()) / static_cast<double>(images.size(1));
}

std::vector<double> over_ranks(std::vector<double> sums, const SumOverRanks& sum_over_ranks) {
  if (!sum_over_ranks) return sums;
  const auto size = static_cast<std::int64_t>(sums.size());
  const auto total = sum_over_ranks(torch::from_blob(sums.data(), {size}, torch::kFloat64));
  const auto* data = total.const_data_ptr<double>();
  return {data, data + size};
}

// Mean and 1 / deviation of each channel, and the number of values behind them.
struct Statistics {
  torch::Tensor mean;    // double [C]
  torch::Tensor invstd;  // double [C]
  double count = 0.0;
};

void move(float& running, double momentum, double value) {
  running = static_cast<float>(momentum * value + (1.0 - momentum) * running);
}

Statistics statistics_of(const BatchNormBuffers& buffers, const BatchNormTensors& tensors,
                         double momentum, double eps, const SumOverRanks& sum_over_ranks) {
  auto sums = sums_of_rows(Phase::kMoments, buffers);
  sums.push_back(pixels_of(buffers.input));
  sums = over_ranks(std::move(sums), sum_over_ranks);
  const auto channels = (sums.size() - 1) / 2;
  const double count = sums.back();
  require_several_values(count);
  const auto shape = {static_cast<std::int64_t>(channels)};
  Statistics found = {torch::empty(shape, torch::kFloat64), torch::empty(shape, torch::kFloat64),
                      count};
  for (std::size_t c = 0; c < channels; ++c) {
    const double mean = sums[c] / count;
    const double variance = std::max(0.0, sums[channels + c] / count - mean * mean);
    found.mean.data_ptr<double>()[c] = mean;
    found.invstd.data_ptr<double>()[c] = 1.0 / std::sqrt(variance + eps);
    const double shift =
        tensors.input_bias.defined() ? tensors.input_bias.const_data_ptr<float>()[c] : 0.0;
    move(tensors.running_mean.data_ptr<float>()[c], momentum, mean + shift);
    move(tensors.running_var.data_ptr<float>()[c], momentum, variance * count / (count - 1.0));
  }
  return found;
}

class BatchNormReluMaxPool : public torch::autograd::Function<BatchNormReluMaxPool> {
 public:
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& input,
                               const torch::Tensor& weight, const torch::Tensor& bias,
                               const torch::Tensor& /*input_bias*/, const BatchNormTensors& tensors,
                               double momentum, double eps, const SumOverRanks& sum_over_ranks) {
    auto output = empty_pooled(input);
    BatchNormBuffers buffers = buffers_for(input, output, torch::empty_like(output, torch::kUInt8));
    const auto found = statistics_of(buffers, tensors, momentum, eps, sum_over_ranks);
    for (std::size_t c = 0; c < buffers.a.size(); ++c) {
      const double scale =
          weight.const_data_ptr<float>()[c] * found.invstd.const_data_ptr<double>()[c];
      buffers.a[c] = coefficient(scale);
      buffers.b[c] = coefficient(bias.const_data_ptr<float>()[c] -
                                 found.mean.const_data_ptr<double>()[c] * scale);
    }
    for_all_rows(Phase::kPool, buffers);
    context->save_for_backward({input, buffers.choices, weight, found.mean, found.invstd});
    context->saved_data["count"] = found.count;
    context->saved_data["sum_over_ranks"] =
        c10::IValue::make_capsule(c10::make_intrusive<SumOverRanksHolder>(sum_over_ranks));
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_create_graph("batch_norm_relu_max_pool2d");
    const auto saved = context->get_saved_variables();
    const auto* weight = saved[2].const_data_ptr<float>();
    const auto* mean = saved[3].const_data_ptr<double>();
    const auto* invstd = saved[4].const_data_ptr<double>();
    BatchNormBuffers buffers =
        buffers_for(saved[0], gradients[0].contiguous(torch::MemoryFormat::ChannelsLast), saved[1]);
    std::copy_n(mean, buffers.a.size(), buffers.a.begin());
    auto sums = sums_of_rows(Phase::kGradientSums, buffers);
    const auto channels = buffers.a.size();
    const auto weight_gradient = torch::empty_like(saved[2]);
    const auto bias_gradient = torch::empty_like(saved[2]);
    for (std::size_t c = 0; c < channels; ++c) {
      weight_gradient.data_ptr<float>()[c] = static_cast<float>(sums[channels + c] * invstd[c]);
      bias_gradient.data_ptr<float>()[c] = static_cast<float>(sums[c]);
    }
    const auto holder = context->saved_data["sum_over_ranks"].toCapsule();
    sums = over_ranks(std::move(sums), static_cast<const SumOverRanksHolder&>(*holder).sum);
    const double count = context->saved_data["count"].toDouble();
    for (std::size_t c = 0; c < channels; ++c) {
      const double scale = weight[c] * invstd[c];
      const double slope = scale * invstd[c] * invstd[c] * sums[channels + c] / count;
      buffers.a[c] = coefficient(scale);
      buffers.b[c] = coefficient(scale * sums[c] / count - mean[c] * slope);
      buffers.d[c] = coefficient(slope);
    }
    buffers.gradient = torch::empty_like(saved[0]);
    for_all_rows(Phase::kGradient, buffers);
    const auto of_input_bias =
        context->needs_input_grad(3) ? torch::zeros_like(saved[2]) : torch::Tensor();
    return {buffers.gradient, weight_gradient, bias_gradient, of_input_bias, {}, {}, {}, {}};
  }
};

}  // namespace

bool can_fuse_batch_norm(const torch::Tensor& input) {
  return can_cut(input) && input.size(1) % kLanes == 0;
}

torch::Tensor batch_norm_relu_max_pool2d(const torch::Tensor& input,
                                         const BatchNormTensors& tensors, double momentum,
                                         double eps, const SumOverRanks& sum_over_ranks) {
  RECORD_FUNCTION("ladder::batch_norm_relu_max_pool2d", {});
  if (!can_fuse_batch_norm(input)) {
    return plain::batch_norm_relu_max_pool2d(input, tensors, momentum, eps, sum_over_ranks);
  }
  for (const auto* parameter :
       {&tensors.weight, &tensors.bias, &tensors.running_mean, &tensors.running_var}) {
    TORCH_CHECK(parameter->is_contiguous(),
                "batch_norm_relu_max_pool2d: expected contiguous weights");
  }
  // An argument of a Function must be defined.
  auto given = tensors;
  if (tensors.input_bias.defined()) {
    given.input_bias = tensors.input_bias.to(torch::kFloat).contiguous();
    TORCH_CHECK(given.input_bias.dim() == 1 && given.input_bias.size(0) == input.size(1),
                "batch_norm_relu_max_pool2d: expected an input_bias of [", input.size(1), "], got ",
                given.input_bias.sizes());
  }
  const auto input_bias =
      given.input_bias.defined() ? given.input_bias : tensors.running_mean.detach();
  return BatchNormReluMaxPool::apply(input, tensors.weight, tensors.bias, input_bias, given,
                                     momentum, eps, sum_over_ranks);
}

}  // namespace ladder
