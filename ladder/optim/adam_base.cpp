// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/adam_base.h"

#include <torch/types.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "ladder/optim/saved_options.h"

namespace ladder {
namespace {

// Python's name for the difference between the two.
constexpr const char* kDecoupled = "decoupled_weight_decay";

struct AdamState : torch::optim::OptimizerCloneableParamState<AdamState> {
  explicit AdamState(const torch::Tensor& parameter)
      : step(torch::zeros({}, torch::dtype(torch::kFloat32).device(parameter.device()))),
        exp_avg(torch::zeros_like(parameter)),
        exp_avg_sq(torch::zeros_like(parameter)) {}

  torch::Tensor step;  // float32 scalar: the kernel wants its step count as a tensor
  torch::Tensor exp_avg;
  torch::Tensor exp_avg_sq;
};

template <typename Numbers>
std::vector<CheckedOption> ranges_of(const Numbers& numbers) {
  return {non_negative("lr", numbers.lr), from_zero_below_one("beta1", numbers.beta1),
          from_zero_below_one("beta2", numbers.beta2), non_negative("eps", numbers.eps),
          non_negative("weight_decay", numbers.weight_decay)};
}

}  // namespace

AdamBase::AdamBase(std::vector<torch::Tensor> parameters, std::unique_ptr<Options> options,
                   std::string_view name, const Numbers& numbers, WeightDecay weight_decay)
    : FusedOptimizer(std::move(parameters), std::move(options)), weight_decay_(weight_decay) {
  check_options(name, ranges_of(numbers));
}

void AdamBase::step_group(const torch::optim::OptimizerParamGroup& group,
                          const GradScaling& scaling) {
  const auto parameters = parameters_with_gradient(group);
  if (parameters.empty()) return;
  std::vector<torch::Tensor> gradients;
  std::vector<torch::Tensor> exp_avgs;
  std::vector<torch::Tensor> exp_avg_sqs;
  std::vector<torch::Tensor> steps;
  for (const auto& parameter : parameters) {
    auto& slot = state_[parameter.unsafeGetTensorImpl()];
    if (slot == nullptr) slot = new_state(group.options(), parameter);
    const auto& state = static_cast<const AdamState&>(*slot);
    gradients.push_back(parameter.grad());
    exp_avgs.push_back(state.exp_avg);
    exp_avg_sqs.push_back(state.exp_avg_sq);
    steps.push_back(state.step);
  }
  at::_foreach_add_(steps, 1);
  const auto numbers = numbers_of(group.options());
  const auto call = [&](auto kernel) {
    kernel(parameters, gradients, exp_avgs, exp_avg_sqs, /*max_exp_avg_sqs=*/{}, steps, numbers.lr,
           numbers.beta1, numbers.beta2, numbers.weight_decay, numbers.eps, /*amsgrad=*/false,
           /*maximize=*/false, scaling.grad_scale, scaling.found_inf);
  };
  weight_decay_ == WeightDecay::kDecoupled ? call(at::_ops::_fused_adamw_::call)
                                           : call(at::_ops::_fused_adam_::call);
  uncount_if_skipped(steps, scaling);
}

nlohmann::json AdamBase::json_of(const Options& options) const {
  const auto numbers = numbers_of(options);
  nlohmann::json json = {{"lr", numbers.lr},
                         {"betas", {numbers.beta1, numbers.beta2}},
                         {"eps", numbers.eps},
                         {"weight_decay", numbers.weight_decay}};
  if (weight_decay_ == WeightDecay::kInGradient) json[kDecoupled] = false;
  return json;
}

std::unique_ptr<AdamBase::Options> AdamBase::options_from(const SavedOptions& saved) const {
  if (weight_decay_ == WeightDecay::kDecoupled) {
    saved.expect_names({"lr", "betas", "eps", "weight_decay"});
  } else {
    saved.expect_names({"lr", "betas", "eps", "weight_decay", kDecoupled});
    if (saved.yes_or_no(kDecoupled)) saved.refuse("false as decoupled_weight_decay", "true");
  }
  const auto [beta1, beta2] = saved.two_numbers("betas");
  const Numbers numbers{.lr = saved.number("lr"),
                        .beta1 = beta1,
                        .beta2 = beta2,
                        .eps = saved.number("eps"),
                        .weight_decay = saved.number("weight_decay")};
  saved.check(ranges_of(numbers));
  return options_with(numbers);
}

std::unique_ptr<AdamBase::ParamState> AdamBase::new_state(const Options& /*options*/,
                                                          const torch::Tensor& parameter) const {
  return std::make_unique<AdamState>(parameter);
}

StateDict AdamBase::tensors_of(const ParamState& state) const {
  const auto& values = static_cast<const AdamState&>(state);
  return {{"exp_avg", values.exp_avg}, {"exp_avg_sq", values.exp_avg_sq}, {"step", values.step}};
}

}  // namespace ladder
