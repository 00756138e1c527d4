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

std::vector<CheckedOption> ranges_of(const AdagradOptions& options) {
  return {non_negative("lr", options.lr), non_negative("lr_decay", options.lr_decay),
          non_negative("weight_decay", options.weight_decay),
          non_negative("initial_accumulator_value", options.initial_accumulator_value),
          non_negative("eps", options.eps)};
}

}  // namespace

Adagrad::Adagrad(std::vector<torch::Tensor> parameters, AdagradOptions options)
    : FusedOptimizer(std::move(parameters),
                     std::make_unique<GroupOptions<AdagradOptions>>(options)) {
  check_options("Adagrad", ranges_of(options));
}

void Adagrad::step_group(const torch::optim::OptimizerParamGroup& group,
                         const GradScaling& scaling) {
  const auto parameters = parameters_with_gradient(group);
  if (parameters.empty()) return;
  std::vector<torch::Tensor> gradients;
  std::vector<torch::Tensor> sums;
  std::vector<torch::Tensor> steps;
  for (const auto& parameter : parameters) {
    auto& slot = state_[parameter.unsafeGetTensorImpl()];
    if (slot == nullptr) slot = new_state(group.options(), parameter);
    const auto& state = static_cast<const AdagradState&>(*slot);
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

nlohmann::json Adagrad::json_of(const Options& options) const {
  const auto& values = static_cast<const GroupOptions<AdagradOptions>&>(options).values;
  return {{"lr", values.lr},
          {"lr_decay", values.lr_decay},
          {"weight_decay", values.weight_decay},
          {"initial_accumulator_value", values.initial_accumulator_value},
          {"eps", values.eps}};
}

std::unique_ptr<Adagrad::Options> Adagrad::options_from(const JsonReader& saved) const {
  saved.expect_only(
      {"params", "lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"});
  const AdagradOptions options{
      .lr = saved.number("lr"),
      .lr_decay = saved.number("lr_decay"),
      .weight_decay = saved.number("weight_decay"),
      .initial_accumulator_value = saved.number("initial_accumulator_value"),
      .eps = saved.number("eps")};
  check_options(saved, ranges_of(options));
  return std::make_unique<GroupOptions<AdagradOptions>>(options);
}

std::unique_ptr<Adagrad::ParamState> Adagrad::new_state(const Options& options,
                                                        const torch::Tensor& parameter) const {
  const auto& values = static_cast<const GroupOptions<AdagradOptions>&>(options).values;
  return std::make_unique<AdagradState>(parameter, values.initial_accumulator_value);
}

StateDict Adagrad::tensors_of(const ParamState& state) const {
  const auto& values = static_cast<const AdagradState&>(state);
  return {{"step", values.step}, {"sum", values.sum}};
}

}  // namespace ladder
