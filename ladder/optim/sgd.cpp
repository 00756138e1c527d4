// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/sgd.h"

#include <fmt/format.h>

#include "ladder/core/error.h"

namespace ladder {
namespace {

constexpr OptionField<SgdOptions> kSgdFields[] = {
    {.name = "lr", .number = &SgdOptions::lr},
    {.name = "momentum", .number = &SgdOptions::momentum},
    {.name = "dampening", .number = &SgdOptions::dampening, .range = OptionRange::kAny},
    {.name = "weight_decay", .number = &SgdOptions::weight_decay},
    {.name = "nesterov", .flag = &SgdOptions::nesterov}};

bool fit_together(const SgdOptions& options) {
  return !options.nesterov || (options.momentum > 0.0 && options.dampening == 0.0);
}

}  // namespace

SGD::SGD(std::vector<torch::Tensor> parameters, SgdOptions options)
    : OptimizerOf("SGD", std::move(parameters), options, kSgdFields) {
  if (!fit_together(options)) {
    throw UsageError::conflict("SGD nesterov", "needs momentum > 0 and dampening 0",
                               "set both, or leave nesterov off");
  }
}

void SGD::step_group(const torch::optim::OptimizerParamGroup& group, const GradScaling& scaling) {
  const auto& options = options_of<SgdOptions>(group);
  std::vector<torch::Tensor> starting;  // without a momentum so far
  std::vector<torch::Tensor> moving;
  for (const auto& parameter : parameters_with_gradient(group)) {
    const bool known = state_.count(parameter.unsafeGetTensorImpl()) != 0;
    (known || options.momentum == 0.0 ? moving : starting).push_back(parameter);
  }
  step_parameters(starting, group, scaling, /*is_first_step=*/true);
  step_parameters(moving, group, scaling, /*is_first_step=*/false);
}

void SGD::step_parameters(const std::vector<torch::Tensor>& parameters,
                          const torch::optim::OptimizerParamGroup& group,
                          const GradScaling& scaling, bool is_first_step) {
  if (parameters.empty()) return;
  // The kernel fills a new momentum buffer, unless it skips the step: then no buffer may exist
  // afterwards, so the first step reads found_inf.
  if (is_first_step && scaling.found_inf && scaling.found_inf->item<float>() != 0.0F) return;
  const auto& options = options_of<SgdOptions>(group);
  std::vector<torch::Tensor> gradients;
  std::vector<torch::Tensor> buffers;
  for (const auto& parameter : parameters) {
    gradients.push_back(parameter.grad());
    if (options.momentum == 0.0) continue;
    buffers.push_back(state_of(group, parameter).at("momentum_buffer"));
  }
  const auto call = [&](const auto& lr) {
    at::_fused_sgd_(parameters, gradients, buffers, options.weight_decay, options.momentum, lr,
                    options.dampening, options.nesterov, /*maximize=*/false, is_first_step,
                    scaling.grad_scale, scaling.found_inf);
  };
  const auto* lr = device_rate(group);
  lr != nullptr ? call(*lr) : call(options.lr);
}

std::unique_ptr<SGD::Options> SGD::options_from(const JsonReader& saved) const {
  auto options = OptimizerOf::options_from(saved);
  const auto& values = values_of(*options);
  if (!fit_together(values)) {
    saved.refuse("momentum > 0 and dampening 0 beside nesterov",
                 fmt::format("{} and {}", values.momentum, values.dampening));
  }
  return options;
}

StateDict SGD::new_state(const Options& options, const torch::Tensor& parameter) const {
  if (values_of(options).momentum == 0.0) return {};
  return {{"momentum_buffer", torch::empty_like(parameter)}};
}

}  // namespace ladder
