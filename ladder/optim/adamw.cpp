// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/adamw.h"

#include <torch/types.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "ladder/optim/saved_options.h"

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

std::vector<OptionRange> ranges_of(const AdamWOptions& options) {
  return {at_least_zero("lr", options.lr), from_zero_below_one("beta1", options.beta1),
          from_zero_below_one("beta2", options.beta2), at_least_zero("eps", options.eps),
          at_least_zero("weight_decay", options.weight_decay)};
}

}  // namespace

AdamW::AdamW(std::vector<torch::Tensor> parameters, AdamWOptions options)
    : FusedOptimizer(std::move(parameters), std::make_unique<GroupOptions<AdamWOptions>>(options)) {
  check_options("AdamW", ranges_of(options));
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
    if (slot == nullptr) slot = new_state(group.options(), parameter);
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

nlohmann::json AdamW::json_of(const Options& options) const {
  const auto& values = static_cast<const GroupOptions<AdamWOptions>&>(options).values;
  return {{"lr", values.lr},
          {"betas", {values.beta1, values.beta2}},
          {"eps", values.eps},
          {"weight_decay", values.weight_decay}};
}

std::unique_ptr<AdamW::Options> AdamW::options_from(const SavedOptions& saved) const {
  saved.expect_names({"lr", "betas", "eps", "weight_decay"});
  const auto [beta1, beta2] = saved.two_numbers("betas");
  const AdamWOptions options{.lr = saved.number("lr"),
                             .beta1 = beta1,
                             .beta2 = beta2,
                             .eps = saved.number("eps"),
                             .weight_decay = saved.number("weight_decay")};
  saved.check(ranges_of(options));
  return std::make_unique<GroupOptions<AdamWOptions>>(options);
}

std::unique_ptr<AdamW::ParamState> AdamW::new_state(const Options& /*options*/,
                                                    const torch::Tensor& parameter) const {
  return std::make_unique<AdamWState>(parameter);
}

StateDict AdamW::tensors_of(const ParamState& state) const {
  const auto& values = static_cast<const AdamWState&>(state);
  return {{"exp_avg", values.exp_avg}, {"exp_avg_sq", values.exp_avg_sq}, {"step", values.step}};
}

}  // namespace ladder
