// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/rmsprop.h"

#include <cstddef>

namespace ladder {
namespace {

constexpr OptionField<RMSpropOptions> kRmspropFields[] = {
    {.name = "lr", .number = &RMSpropOptions::lr},
    {.name = "alpha", .number = &RMSpropOptions::alpha},
    {.name = "eps", .number = &RMSpropOptions::eps},
    {.name = "weight_decay", .number = &RMSpropOptions::weight_decay},
    {.name = "momentum", .number = &RMSpropOptions::momentum},
    {.name = "centered", .flag = &RMSpropOptions::centered}};

void unscale(const std::vector<torch::Tensor>& parameters, const torch::Tensor& scale) {
  std::vector<torch::Tensor> gradients;
  for (const auto& parameter : parameters) gradients.push_back(parameter.grad());
  const auto inverse = scale.to(torch::kFloat64).reciprocal().to(torch::kFloat32);
  auto found_inf = torch::zeros_like(inverse);  // the caller has one
  at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inverse);
}

// Gives the tensors their values `before` a step that is to be skipped. Only the GPU knows whether
// it is, so the step is computed in any case.
void restore_if_skipped(const std::vector<torch::Tensor>& tensors,
                        const std::vector<torch::Tensor>& before, const torch::Tensor& found_inf) {
  const auto is_skipped = found_inf.ne(0.0);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    auto tensor = tensors[i];
    torch::where_out(tensor, is_skipped, before[i], tensor);
  }
}

void step_parameter(const torch::Tensor& parameter, const RMSpropOptions& options,
                    const StateDict& state) {
  state.at("step").add_(1);
  const auto& own = parameter.grad();
  const auto& square_avg = state.at("square_avg");
  const auto gradient =
      options.weight_decay == 0.0 ? own : own.add(parameter, options.weight_decay);
  square_avg.mul_(options.alpha).addcmul_(gradient, gradient, 1.0 - options.alpha);
  torch::Tensor average;
  if (options.centered) {
    const auto& grad_avg = state.at("grad_avg");
    grad_avg.lerp_(gradient, 1.0 - options.alpha);
    average = square_avg.addcmul(grad_avg, grad_avg, -1.0).sqrt_();
  } else {
    average = square_avg.sqrt();
  }
  average.add_(options.eps);
  if (options.momentum > 0.0) {
    const auto& buffer = state.at("momentum_buffer");
    buffer.mul_(options.momentum).addcdiv_(gradient, average);
    parameter.add_(buffer, -options.lr);
  } else {
    parameter.addcdiv_(gradient, average, -options.lr);
  }
}

}  // namespace

RMSprop::RMSprop(std::vector<torch::Tensor> parameters, RMSpropOptions options)
    : OptimizerOf("RMSprop", std::move(parameters), options, kRmspropFields) {}

void RMSprop::step_group(const torch::optim::OptimizerParamGroup& group,
                         const GradScaling& scaling) {
  const auto parameters = parameters_with_gradient(group);
  if (parameters.empty()) return;
  if (scaling.grad_scale) unscale(parameters, *scaling.grad_scale);
  std::vector<const StateDict*> states;
  std::vector<torch::Tensor> steps;
  std::vector<torch::Tensor> changed = parameters;
  for (const auto& parameter : parameters) {
    const auto& state = state_of(group, parameter);
    states.push_back(&state);
    for (const auto& [name, tensor] : state) {
      (name == "step" ? steps : changed).push_back(tensor);
    }
  }
  std::vector<torch::Tensor> before;
  for (const auto& tensor : changed) {
    if (scaling.found_inf) before.push_back(tensor.clone());
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    step_parameter(parameters[i], options_of<RMSpropOptions>(group), *states[i]);
  }
  if (scaling.found_inf) restore_if_skipped(changed, before, *scaling.found_inf);
  uncount_if_skipped(steps, scaling);
}

StateDict RMSprop::new_state(const Options& options, const torch::Tensor& parameter) const {
  const auto& values = values_of(options);
  StateDict state = {{"square_avg", torch::zeros_like(parameter)}, {"step", no_steps(parameter)}};
  if (values.momentum > 0.0) state["momentum_buffer"] = torch::zeros_like(parameter);
  if (values.centered) state["grad_avg"] = torch::zeros_like(parameter);
  return state;
}

}  // namespace ladder
