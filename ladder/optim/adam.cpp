// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/adam.h"

#include <iterator>
#include <span>
#include <type_traits>

namespace ladder {
namespace {

template <typename OptionsOfAdam>
constexpr bool kIsAdamW = std::is_same_v<OptionsOfAdam, AdamWOptions>;

struct AdamState : torch::optim::OptimizerCloneableParamState<AdamState> {
  explicit AdamState(const torch::Tensor& parameter)
      : step(torch::zeros({}, torch::dtype(torch::kFloat32).device(parameter.device()))),
        exp_avg(torch::zeros_like(parameter)),
        exp_avg_sq(torch::zeros_like(parameter)) {}

  torch::Tensor step;  // float32 scalar: the kernel takes the step count as a tensor
  torch::Tensor exp_avg;
  torch::Tensor exp_avg_sq;
};

template <typename O>
constexpr OptionField<O> kAdamFields[] = {
    {.name = "lr", .number = &O::lr},
    {.name = "beta1",
     .number = &O::beta1,
     .range = OptionRange::kFromZeroBelowOne,
     .list = "betas"},
    {.name = "beta2",
     .number = &O::beta2,
     .range = OptionRange::kFromZeroBelowOne,
     .list = "betas"},
    {.name = "eps", .number = &O::eps},
    {.name = "weight_decay", .number = &O::weight_decay},
    {.name = "decoupled_weight_decay"}};  // last: Python's name for the difference, not in AdamW

template <typename O>
constexpr std::span<const OptionField<O>> fields_of() {
  return std::span(kAdamFields<O>).first(std::size(kAdamFields<O>) - (kIsAdamW<O> ? 1 : 0));
}

}  // namespace

template <typename OptionsOfAdam>
BasicAdam<OptionsOfAdam>::BasicAdam(std::vector<torch::Tensor> parameters, OptionsOfAdam options)
    : OptimizerOf<OptionsOfAdam>(kIsAdamW<OptionsOfAdam> ? "AdamW" : "Adam", std::move(parameters),
                                 options, fields_of<OptionsOfAdam>()) {}

template <typename OptionsOfAdam>
void BasicAdam<OptionsOfAdam>::step_group(const torch::optim::OptimizerParamGroup& group,
                                          const GradScaling& scaling) {
  const auto parameters = FusedOptimizer::parameters_with_gradient(group);
  if (parameters.empty()) return;
  std::vector<torch::Tensor> gradients;
  std::vector<torch::Tensor> exp_avgs;
  std::vector<torch::Tensor> exp_avg_sqs;
  std::vector<torch::Tensor> steps;
  for (const auto& parameter : parameters) {
    const auto& state = static_cast<const AdamState&>(this->state_of(group, parameter));
    gradients.push_back(parameter.grad());
    exp_avgs.push_back(state.exp_avg);
    exp_avg_sqs.push_back(state.exp_avg_sq);
    steps.push_back(state.step);
  }
  at::_foreach_add_(steps, 1);
  const auto& options = options_of<OptionsOfAdam>(group);
  const auto call = [&](auto kernel) {
    kernel(parameters, gradients, exp_avgs, exp_avg_sqs, /*max_exp_avg_sqs=*/{}, steps, options.lr,
           options.beta1, options.beta2, options.weight_decay, options.eps, /*amsgrad=*/false,
           /*maximize=*/false, scaling.grad_scale, scaling.found_inf);
  };
  kIsAdamW<OptionsOfAdam> ? call(at::_ops::_fused_adamw_::call)
                          : call(at::_ops::_fused_adam_::call);
  FusedOptimizer::uncount_if_skipped(steps, scaling);
}

template <typename OptionsOfAdam>
std::unique_ptr<FusedOptimizer::ParamState> BasicAdam<OptionsOfAdam>::new_state(
    const Options& /*options*/, const torch::Tensor& parameter) const {
  return std::make_unique<AdamState>(parameter);
}

template <typename OptionsOfAdam>
StateDict BasicAdam<OptionsOfAdam>::tensors_of(const ParamState& state) const {
  const auto& values = static_cast<const AdamState&>(state);
  return {{"exp_avg", values.exp_avg}, {"exp_avg_sq", values.exp_avg_sq}, {"step", values.step}};
}

template class BasicAdam<AdamOptions>;
template class BasicAdam<AdamWOptions>;

}  // namespace ladder
