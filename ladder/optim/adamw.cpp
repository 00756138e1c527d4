// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/adamw.h"

#include <torch/types.h>

#include <memory>
#include <utility>

#include "ladder/core/error.h"

namespace ladder {
namespace {

struct AdamWState : torch::optim::OptimizerCloneableParamState<AdamWState> {
  explicit AdamWState(const torch::Tensor& parameter)
      : step(torch::zeros({}, torch::dtype(torch::kFloat32).device(parameter.device()))),
        exp_avg(torch::zeros_like(parameter)),
        exp_avg_sq(torch::zeros_like(parameter)) {}

  torch::Tensor step;  // float32 scalar: the kernel wants its step count as a tensor
  torch::Tensor exp_avg;
  torch::Tensor exp_avg_sq;
};

void check(const AdamWOptions& options) {
  const auto not_negative = [](const char* name, double value) {
    if (!(value >= 0.0)) throw UsageError::out_of_range(name, value, "a value >= 0");
  };
  const auto below_one = [](const char* name, double value) {
    const bool valid = value >= 0.0 && value < 1.0;  // false for NaN
    if (!valid) throw UsageError::out_of_range(name, value, "0 <= beta < 1");
  };
  not_negative("AdamW lr", options.lr);
  below_one("AdamW beta1", options.beta1);
  below_one("AdamW beta2", options.beta2);
  not_negative("AdamW eps", options.eps);
  not_negative("AdamW weight_decay", options.weight_decay);
}

}  // namespace

AdamW::AdamW(std::vector<torch::Tensor> parameters, AdamWOptions options)
    : FusedOptimizer(std::move(parameters), std::make_unique<GroupOptions<AdamWOptions>>(options)) {
  check(options);
}

void AdamW::step_group(const torch::optim::OptimizerParamGroup& group, const GradScaling& scaling) {
  const auto parameters = parameters_with_gradient(group);
  if (parameters.empty()) return;
  std::vector<torch::Tensor> gradients;
  std::vector<torch::Tensor> exp_avgs;
  std::vector<torch::Tensor> exp_avg_sqs;
  std::vector<torch::Tensor> steps;
  for (const auto& parameter : parameters) {
    auto& slot = state_[parameter.unsafeGetTensorImpl()];
    if (slot == nullptr) slot = std::make_unique<AdamWState>(parameter);
    const auto& state = static_cast<const AdamWState&>(*slot);
    gradients.push_back(parameter.grad());
    exp_avgs.push_back(state.exp_avg);
    exp_avg_sqs.push_back(state.exp_avg_sq);
    steps.push_back(state.step);
  }
  at::_foreach_add_(steps, 1);
  const auto& options = options_of<AdamWOptions>(group);
  at::_fused_adamw_(parameters, gradients, exp_avgs, exp_avg_sqs, /*max_exp_avg_sqs=*/{}, steps,
                    options.lr, options.beta1, options.beta2, options.weight_decay, options.eps,
                    /*amsgrad=*/false, /*maximize=*/false, scaling.grad_scale, scaling.found_inf);
  // A step that the kernel skipped does not count.
  if (scaling.found_inf) {
    at::_foreach_sub_(steps, std::vector<torch::Tensor>(steps.size(), *scaling.found_inf));
  }
}

}  // namespace ladder
