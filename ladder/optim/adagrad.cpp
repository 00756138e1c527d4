// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/adagrad.h"

namespace ladder {
namespace {

struct AdagradState : torch::optim::OptimizerCloneableParamState<AdagradState> {
  AdagradState(const torch::Tensor& parameter, double initial_sum)
      : step(torch::zeros({}, torch::dtype(torch::kFloat32).device(parameter.device()))),
        sum(torch::full_like(parameter, initial_sum)) {}

  torch::Tensor step;  // float32 scalar
  torch::Tensor sum;
};

constexpr OptionField<AdagradOptions> kAdagradFields[] = {
    {.name = "lr", .number = &AdagradOptions::lr},
    {.name = "lr_decay", .number = &AdagradOptions::lr_decay},
    {.name = "weight_decay", .number = &AdagradOptions::weight_decay},
    {.name = "initial_accumulator_value", .number = &AdagradOptions::initial_accumulator_value},
    {.name = "eps", .number = &AdagradOptions::eps}};

}  // namespace

Adagrad::Adagrad(std::vector<torch::Tensor> parameters, AdagradOptions options)
    : OptimizerOf("Adagrad", std::move(parameters), options, kAdagradFields) {}

void Adagrad::step_group(const torch::optim::OptimizerParamGroup& group,
                         const GradScaling& scaling) {
  const auto parameters = parameters_with_gradient(group);
  if (parameters.empty()) return;
  std::vector<torch::Tensor> gradients;
  std::vector<torch::Tensor> sums;
  std::vector<torch::Tensor> steps;
  for (const auto& parameter : parameters) {
    const auto& state = static_cast<const AdagradState&>(state_of(group, parameter));
    gradients.push_back(parameter.grad());
    sums.push_back(state.sum);
    steps.push_back(state.step);
  }
  at::_foreach_add_(steps, 1);
  const auto& options = options_of<AdagradOptions>(group);
  at::_fused_adagrad_(parameters, gradients, sums, steps, options.lr, options.lr_decay,
                      options.weight_decay, options.eps, /*maximize=*/false, scaling.grad_scale,
                      scaling.found_inf);
  uncount_if_skipped(steps, scaling);
}

std::unique_ptr<Adagrad::ParamState> Adagrad::new_state(const Options& options,
                                                        const torch::Tensor& parameter) const {
  return std::make_unique<AdagradState>(parameter, values_of(options).initial_accumulator_value);
}

StateDict Adagrad::tensors_of(const ParamState& state) const {
  const auto& values = static_cast<const AdagradState&>(state);
  return {{"step", values.step}, {"sum", values.sum}};
}

}  // namespace ladder
