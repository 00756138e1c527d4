// SPDX-License-Identifier: Apache-2.0
#include "ladder/nn/batch_norm_relu_max_pool.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "ladder/nn/batch_norm_passes.h"
#include "ladder/nn/batch_norm_rows.h"
#include "ladder/nn/group_statistics.h"
#include "ladder/nn/pool_windows.h"

namespace ladder {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using namespace windows;

constexpr auto kLast = torch::MemoryFormat::ChannelsLast;

double pixels_of(const torch::Tensor& images) {
  return static_cast<double>(images.numel()) / static_cast<double>(images.size(1));
}

// The sums of all ranks, added in rank order.
std::vector<double> over_ranks(std::vector<double> sums, const ProcessGroup& group) {
  if (group.world_size() == 1) return sums;
  const auto size = static_cast<std::int64_t>(sums.size());
  const auto total = sum_of_ranks(torch::from_blob(sums.data(), {size}, torch::kFloat64), group);
  const auto* data = total.const_data_ptr<double>();
  return {data, data + size};
}

// Mean and 1 / deviation of each channel, and the pixels that they are of; moves the running
// values.
struct Statistics {
  torch::Tensor mean;    // double [C]
  torch::Tensor invstd;  // double [C]
  double count = 0.0;
};

void move(float& running, double momentum, double value) {
  running = static_cast<float>(momentum * value + (1.0 - momentum) * running);
}

Statistics statistics_of(const Work& work, const BatchNormTensors& tensors, double momentum,
                         double eps, const ProcessGroup& group) {
  auto sums = sums_of_rows(Step::kMoments, work);
  sums.push_back(pixels_of(work.input));
  sums = over_ranks(std::move(sums), group);
  const auto channels = (sums.size() - 1) / 2;
  const double count = sums.back();
  require_a_batch(count);
  const auto shape = {static_cast<std::int64_t>(channels)};
  Statistics found = {torch::empty(shape, torch::kFloat64), torch::empty(shape, torch::kFloat64),
                      count};
  for (std::size_t c = 0; c < channels; ++c) {
    const double mean = sums[c] / count;
    const double variance = std::max(0.0, sums[channels + c] / count - mean * mean);
    found.mean.data_ptr<double>()[c] = mean;
    found.invstd.data_ptr<double>()[c] = 1.0 / std::sqrt(variance + eps);
    move(tensors.running_mean.data_ptr<float>()[c], momentum, mean);
    move(tensors.running_var.data_ptr<float>()[c], momentum, variance * count / (count - 1.0));
  }
  return found;
}

class BatchNormReluMaxPool : public torch::autograd::Function<BatchNormReluMaxPool> {
 public:
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& input,
                               const torch::Tensor& weight, const torch::Tensor& bias,
                               const BatchNormTensors& tensors, double momentum, double eps,
                               const ProcessGroup& group) {
    auto output = empty_pooled(input);
    Work work = work_on(input, output, torch::empty_like(output, torch::kUInt8));
    const auto found = statistics_of(work, tensors, momentum, eps, group);
    for (std::size_t c = 0; c < work.a.size(); ++c) {
      const double scale =
          weight.const_data_ptr<float>()[c] * found.invstd.const_data_ptr<double>()[c];
      work.a[c] = static_cast<float>(scale);
      work.b[c] = static_cast<float>(bias.const_data_ptr<float>()[c] -
                                     found.mean.const_data_ptr<double>()[c] * scale);
    }
    for_all_rows(Step::kPool, work);
    context->save_for_backward({input, work.choices, weight, found.mean, found.invstd});
    context->saved_data["count"] = found.count;
    context->saved_data["group"] =
        c10::IValue::make_capsule(c10::make_intrusive<GroupHolder>(group));
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto* weight = saved[2].const_data_ptr<float>();
    const auto* mean = saved[3].const_data_ptr<double>();
    const auto* invstd = saved[4].const_data_ptr<double>();
    Work work = work_on(saved[0], gradients[0].contiguous(kLast), saved[1]);
    std::copy_n(mean, work.a.size(), work.a.begin());
    auto sums = sums_of_rows(Step::kGradientSums, work);
    const auto channels = work.a.size();
    const auto weight_gradient = torch::empty_like(saved[2]);
    const auto bias_gradient = torch::empty_like(saved[2]);
    for (std::size_t c = 0; c < channels; ++c) {
      weight_gradient.data_ptr<float>()[c] = static_cast<float>(sums[channels + c] * invstd[c]);
      bias_gradient.data_ptr<float>()[c] = static_cast<float>(sums[c]);
    }
    const auto holder = context->saved_data["group"].toCapsule();
    sums = over_ranks(std::move(sums), static_cast<const GroupHolder&>(*holder).group);
    const double count = context->saved_data["count"].toDouble();
    for (std::size_t c = 0; c < channels; ++c) {
      const double scale = weight[c] * invstd[c];
      const double slope = scale * invstd[c] * invstd[c] * sums[channels + c] / count;
      work.a[c] = static_cast<float>(scale);
      work.b[c] = static_cast<float>(scale * sums[c] / count - mean[c] * slope);
      work.d[c] = static_cast<float>(slope);
    }
    work.gradient = torch::empty_like(saved[0]);
    for_all_rows(Step::kGradient, work);
    return {work.gradient, weight_gradient, bias_gradient, {}, {}, {}, {}};
  }
};

}  // namespace

bool can_fuse_batch_norm(const torch::Tensor& input) {
  return can_cut(input) && input.size(1) % kLanes == 0;
}

torch::Tensor batch_norm_relu_max_pool2d(const torch::Tensor& input,
                                         const BatchNormTensors& tensors, double momentum,
                                         double eps, const ProcessGroup& group) {
  RECORD_FUNCTION("ladder::batch_norm_relu_max_pool2d", {});
  return BatchNormReluMaxPool::apply(input, tensors.weight, tensors.bias, tensors, momentum, eps,
                                     group);
}

}  // namespace ladder
