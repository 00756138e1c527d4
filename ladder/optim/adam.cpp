// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/adam.h"

#include <type_traits>

namespace ladder {
namespace {

template <typename OptionsOfAdam>
constexpr bool kIsAdamW = std::is_same_v<OptionsOfAdam, AdamWOptions>;

// Python's name for the difference between the two.
constexpr const char* kDecoupled = "decoupled_weight_decay";

struct AdamState : torch::optim::OptimizerCloneableParamState<AdamState> {
  explicit AdamState(const torch::Tensor& parameter)
      : step(torch::zeros({}, torch::dtype(torch::kFloat32).device(parameter.device()))),
        exp_avg(torch::zeros_like(parameter)),
        exp_avg_sq(torch::zeros_like(parameter)) {}

  torch::Tensor step;  // float32 scalar: the kernel takes the step count as a tensor
  torch::Tensor exp_avg;
  torch::Tensor exp_avg_sq;
};

template <typename OptionsOfAdam>
std::vector<CheckedOption> ranges_of(const OptionsOfAdam& options) {
  return {non_negative("lr", options.lr), from_zero_below_one("beta1", options.beta1),
          from_zero_below_one("beta2", options.beta2), non_negative("eps", options.eps),
          non_negative("weight_decay", options.weight_decay)};
}

}  // namespace

template <typename OptionsOfAdam>
BasicAdam<OptionsOfAdam>::BasicAdam(std::vector<torch::Tensor> parameters, OptionsOfAdam options)
    : FusedOptimizer(std::move(parameters),
                     std::make_unique<GroupOptions<OptionsOfAdam>>(options)) {
  check_options(kIsAdamW<OptionsOfAdam> ? "AdamW" : "Adam", ranges_of(options));
}

template <typename OptionsOfAdam>
void BasicAdam<OptionsOfAdam>::step_group(const torch::optim::OptimizerParamGroup& group,
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
  const auto& options = options_of<OptionsOfAdam>(group);
  const auto call = [&](auto kernel) {
    kernel(parameters, gradients, exp_avgs, exp_avg_sqs, /*max_exp_avg_sqs=*/{}, steps, options.lr,
           options.beta1, options.beta2, options.weight_decay, options.eps, /*amsgrad=*/false,
           /*maximize=*/false, scaling.grad_scale, scaling.found_inf);
  };
  kIsAdamW<OptionsOfAdam> ? call(at::_ops::_fused_adamw_::call)
                          : call(at::_ops::_fused_adam_::call);
  uncount_if_skipped(steps, scaling);
}

template <typename OptionsOfAdam>
nlohmann::json BasicAdam<OptionsOfAdam>::json_of(const Options& options) const {
  const auto& values = static_cast<const GroupOptions<OptionsOfAdam>&>(options).values;
  nlohmann::json json = {{"lr", values.lr},
                         {"betas", {values.beta1, values.beta2}},
                         {"eps", values.eps},
                         {"weight_decay", values.weight_decay}};
  if (!kIsAdamW<OptionsOfAdam>) json[kDecoupled] = false;
  return json;
}

template <typename OptionsOfAdam>
std::unique_ptr<FusedOptimizer::Options> BasicAdam<OptionsOfAdam>::options_from(
    const JsonReader& saved) const {
  if (kIsAdamW<OptionsOfAdam>) {
    saved.expect_only({"params", "lr", "betas", "eps", "weight_decay"});
  } else {
    saved.expect_only({"params", "lr", "betas", "eps", "weight_decay", kDecoupled});
    if (saved.boolean(kDecoupled)) saved.refuse_value("false", kDecoupled);
  }
  const auto betas = saved.numbers("betas", 2);
  const OptionsOfAdam options{.lr = saved.number("lr"),
                              .beta1 = betas[0],
                              .beta2 = betas[1],
                              .eps = saved.number("eps"),
                              .weight_decay = saved.number("weight_decay")};
  check_options(saved, ranges_of(options));
  return std::make_unique<GroupOptions<OptionsOfAdam>>(options);
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
