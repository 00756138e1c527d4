// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/sgd.h"

#include <torch/types.h>

#include <memory>
#include <utility>

#include "ladder/core/error.h"

namespace ladder {
namespace {

struct SgdState : torch::optim::OptimizerCloneableParamState<SgdState> {
  explicit SgdState(torch::Tensor buffer) : momentum_buffer(std::move(buffer)) {}

  torch::Tensor momentum_buffer;
};

void check(const SgdOptions& options) {
  const auto not_negative = [](const char* name, double value) {
    if (!(value >= 0.0)) throw UsageError::out_of_range(name, value, "a value >= 0");
  };
  not_negative("SGD lr", options.lr);
  not_negative("SGD momentum", options.momentum);
  not_negative("SGD weight_decay", options.weight_decay);
  if (options.nesterov && (options.momentum <= 0.0 || options.dampening != 0.0)) {
    throw UsageError::conflict("SGD nesterov", "needs momentum > 0 and dampening 0",
                               "set both, or leave nesterov off");
  }
}

}  // namespace

SGD::SGD(std::vector<torch::Tensor> parameters, SgdOptions options)
    : FusedOptimizer(std::move(parameters), std::make_unique<GroupOptions<SgdOptions>>(options)) {
  check(options);
}

void SGD::step_group(const torch::optim::OptimizerParamGroup& group, const GradScaling& scaling) {
  const auto& options = options_of<SgdOptions>(group);
  std::vector<torch::Tensor> starting;  // no momentum yet
  std::vector<torch::Tensor> moving;
  for (const auto& parameter : parameters_with_gradient(group)) {
    const bool known = state_.count(parameter.unsafeGetTensorImpl()) != 0;
    (known || options.momentum == 0.0 ? moving : starting).push_back(parameter);
  }
  step_parameters(starting, options, scaling, /*is_first_step=*/true);
  step_parameters(moving, options, scaling, /*is_first_step=*/false);
}

void SGD::step_parameters(const std::vector<torch::Tensor>& parameters, const SgdOptions& options,
                          const GradScaling& scaling, bool is_first_step) {
  if (parameters.empty()) return;
  // The kernel fills a new momentum buffer, unless it skips the step: then there must be none
  // afterwards. Whether it does has to be read once, in the first step.
  if (is_first_step && scaling.found_inf && scaling.found_inf->item<float>() != 0.0F) {
    return;
  }
  std::vector<torch::Tensor> gradients;
  std::vector<torch::Tensor> buffers;
  for (const auto& parameter : parameters) {
    gradients.push_back(parameter.grad());
    if (options.momentum == 0.0) continue;
    auto& slot = state_[parameter.unsafeGetTensorImpl()];
    if (slot == nullptr) slot = std::make_unique<SgdState>(torch::empty_like(parameter));
    buffers.push_back(static_cast<const SgdState&>(*slot).momentum_buffer);
  }
  at::_fused_sgd_(parameters, gradients, buffers, options.weight_decay, options.momentum,
                  options.lr, options.dampening, options.nesterov, /*maximize=*/false,
                  is_first_step, scaling.grad_scale, scaling.found_inf);
}

}  // namespace ladder
