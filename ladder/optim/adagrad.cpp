// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/adagrad.h"

namespace ladder {
namespace {

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
  auto tensors = step_tensors(group);
  if (tensors.parameters.empty()) return;
  auto& steps = tensors.states["step"];
  at::_foreach_add_(steps, 1);
  const auto& options = options_of<AdagradOptions>(group);
  at::_fused_adagrad_(tensors.parameters, tensors.gradients, tensors.states["sum"], steps,
                      options.lr, options.lr_decay, options.weight_decay, options.eps,
                      /*maximize=*/false, scaling.grad_scale, scaling.found_inf);
  uncount_if_skipped(steps, scaling);
}

StateDict Adagrad::new_state(const Options& options, const torch::Tensor& parameter) const {
  const double sum = values_of(options).initial_accumulator_value;
  return {{"step", no_steps(parameter)}, {"sum", torch::full_like(parameter, sum)}};
}

}  // namespace ladder
