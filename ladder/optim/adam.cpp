// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/adam.h"

#include <iterator>
#include <span>
#include <type_traits>

namespace ladder {
namespace {

template <typename OptionsOfAdam>
constexpr bool kIsAdamW = std::is_same_v<OptionsOfAdam, AdamWOptions>;

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
  auto tensors = this->step_tensors(group);
  if (tensors.parameters.empty()) return;
  auto& states = tensors.states;
  auto& steps = states["step"];
  at::_foreach_add_(steps, 1);
  const auto& options = options_of<OptionsOfAdam>(group);
  const auto call = [&](auto kernel, const auto& lr) {
    kernel(tensors.parameters, tensors.gradients, states["exp_avg"], states["exp_avg_sq"],
           /*max_exp_avg_sqs=*/{}, steps, lr, options.beta1, options.beta2, options.weight_decay,
           options.eps,
           /*amsgrad=*/false, /*maximize=*/false, scaling.grad_scale, scaling.found_inf);
  };
  if (const auto* lr = this->device_rate(group)) {
    kIsAdamW<OptionsOfAdam> ? call(at::_ops::_fused_adamw__tensor_lr::call, *lr)
                            : call(at::_ops::_fused_adam__tensor_lr::call, *lr);
  } else {
    kIsAdamW<OptionsOfAdam> ? call(at::_ops::_fused_adamw_::call, options.lr)
                            : call(at::_ops::_fused_adam_::call, options.lr);
  }
  FusedOptimizer::uncount_if_skipped(steps, scaling);
}

template <typename OptionsOfAdam>
StateDict BasicAdam<OptionsOfAdam>::new_state(const Options& /*options*/,
                                              const torch::Tensor& parameter) const {
  return {{"step", FusedOptimizer::no_steps(parameter)},
          {"exp_avg", torch::zeros_like(parameter)},
          {"exp_avg_sq", torch::zeros_like(parameter)}};
}

template class BasicAdam<AdamOptions>;
template class BasicAdam<AdamWOptions>;

}  // namespace ladder
