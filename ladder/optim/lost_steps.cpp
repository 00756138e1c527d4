// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/lost_steps.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "ladder/core/log.h"

namespace ladder {
namespace {

// The first elements of a parameter, and a copy from before the step.
struct Sample {
  torch::Tensor parameter;
  torch::Tensor before;
};

torch::Tensor first_of(const torch::Tensor& tensor) {
  constexpr std::int64_t kMost = 1024;
  return tensor.detach().as_strided({std::min(tensor.numel(), kMost)}, {1});
}

bool is_half(const torch::Tensor& tensor) {
  return tensor.scalar_type() == torch::kBFloat16 || tensor.scalar_type() == torch::kHalf;
}

// As the first step of a warm-up. Options of an optimizer elsewhere may have no rate.
bool has_rate_0(const torch::optim::OptimizerParamGroup& group) {
  try {
    return group.has_options() && group.options().get_lr() == 0.0;
  } catch (const c10::Error&) {
    return false;
  }
}

std::vector<Sample> samples_of(const torch::optim::Optimizer& optimizer) {
  std::vector<Sample> samples;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      if (!is_half(parameter) || !parameter.is_non_overlapping_and_dense()) continue;
      if (has_rate_0(group)) break;
      samples.push_back({parameter, first_of(parameter).clone()});
    }
  }
  return samples;
}

// The part of the elements with a gradient that the step did not change. Waits for a GPU.
double lost_part(const std::vector<Sample>& samples,
                 const std::optional<torch::Tensor>& found_inf) {
  double lost = 0.0, all = 0.0;
  for (const auto& [parameter, before] : samples) {
    const auto& gradient = parameter.grad();
    if (!gradient.defined() || gradient.strides() != parameter.strides()) continue;
    const auto stepped = first_of(gradient).ne(0);
    lost += stepped.logical_and(first_of(parameter).eq(before)).sum().item<double>();
    all += stepped.sum().item<double>();
  }
  if (all == 0.0 || (found_inf && found_inf->item<float>() != 0.0F)) return 0.0;
  return lost / all;
}

}  // namespace

void LostSteps::watch(const torch::optim::Optimizer& optimizer, const std::function<void()>& step,
                      const std::optional<torch::Tensor>& found_inf) {
  if (warned_ || !std::has_single_bit(++steps_)) return step();
  const auto samples = samples_of(optimizer);
  step();
  if (samples.empty()) return;
  const auto lost = lost_part(samples, found_inf);
  if (lost <= 0.5) return;
  warned_ = true;
  Log().warn(fmt::format(
      "optimizer: step {} left {:.0f} % of the {} weights as they were: it is smaller than their "
      "precision; hint: keep the parameters in float32 and compute under Autocast, or step a "
      "float32 copy and copy it to the network",
      steps_, 100.0 * lost,
      samples.front().parameter.scalar_type() == torch::kHalf ? "float16" : "bfloat16"));
}

}  // namespace ladder
