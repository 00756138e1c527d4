// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/fused_optimizer.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <typeinfo>
#include <unordered_map>

#include "ladder/core/error.h"
#include "ladder/core/largest_counts.h"
#include "ladder/core/tensor_form.h"
#include "ladder/nn/model.h"

namespace ladder {
namespace {

constexpr const char* kHint = "is this the state of another optimizer or network?";

// The names of a module's parameters, by their identity.
std::unordered_map<const void*, std::string> names_of(const torch::nn::Module& module) {
  std::unordered_map<const void*, std::string> names;
  for (const auto& item : unwrapped(module).named_parameters()) {
    names.emplace(item.value().unsafeGetTensorImpl(), item.key());
  }
  return names;
}

// The names of an optimizer's parameters, by group.
std::vector<std::vector<std::string>> group_names(const torch::optim::Optimizer& optimizer,
                                                  const torch::nn::Module& module) {
  const auto names = names_of(module);
  std::vector<std::vector<std::string>> result;
  for (const auto& group : optimizer.param_groups()) {
    auto& row = result.emplace_back();
    for (const auto& parameter : group.params()) {
      const auto found = names.find(parameter.unsafeGetTensorImpl());
      if (found == names.end()) {
        throw UsageError::conflict(
            "optimizer state",
            fmt::format("a parameter, {}, is none of the module's",
                        TensorForm::of_values(parameter).text()),
            "give the module whose parameters() the optimizer was made with");
      }
      row.push_back(found->second);
    }
  }
  return result;
}

[[noreturn]] void refuse(std::string_view origin, const std::string& expected,
                         const std::string& got) {
  throw DataError::mismatch(origin, expected, got, kHint);
}

bool is_inside(double value, OptionRange range) {
  if (range == OptionRange::kAny) return true;
  return value >= 0.0 && (range == OptionRange::kFromZero || value < 1.0);
}

const char* text_of(OptionRange range) {
  return range == OptionRange::kFromZero ? "a value >= 0" : "0 <= beta < 1";
}

// Of a state: a count of steps has another shape.
bool is_laid_out_otherwise(const torch::Tensor& tensor, const torch::Tensor& parameter) {
  return tensor.layout() == torch::kStrided && tensor.sizes() == parameter.sizes() &&
         !torch::autograd::utils::obeys_layout_contract(tensor, parameter);
}

torch::Tensor laid_out_like(const torch::Tensor& parameter, const torch::Tensor& tensor) {
  return torch::autograd::utils::clone_obey_contract(tensor, parameter);
}

void expect_params(const JsonReader& saved, const std::vector<std::string>& names) {
  const auto& params = saved.array("params");
  for (std::size_t i = 0; i < std::max(names.size(), params.size()); ++i) {
    const std::string expected = i < names.size() ? names[i] : "nothing more";
    const std::string got = i < params.size() ? json_for_message(params[i]) : "nothing more";
    const bool equal = i < names.size() && i < params.size() && params[i] == expected;
    if (!equal) saved.refuse(fmt::format("{} at {} of params", expected, i), got);
  }
}

void check_count(const std::string& name, const torch::Tensor& value, std::string_view origin) {
  const auto count = value.item<double>();
  const bool in_range = count >= 0.0 && count <= static_cast<double>(kMaxOptimizerSteps);
  if (in_range && std::floor(count) == count) return;
  refuse(origin, fmt::format("a count of steps as {}", name), fmt::format("{}", count));
}

// Mean squares and sums of squares have a root taken of them.
void check_numbers(const std::string& name, const std::string& key, const torch::Tensor& value,
                   std::string_view origin) {
  if (key == "step") return check_count(name, value, origin);
  if (!all_finite(value))
    refuse(origin, fmt::format("finite numbers in {}", name), "NaN or infinity");
  const bool is_square = key == "exp_avg_sq" || key == "square_avg" || key == "sum";
  if (is_square && value.lt(0).any().item<bool>()) {
    refuse(origin, fmt::format("numbers >= 0 in {}", name), "a negative one");
  }
}

// Moves the values of one parameter from `tensors` into `state`. Returns false if there are none.
bool take_values(const StateDict& state, const std::string& parameter, StateDict& tensors,
                 std::string_view origin) {
  const auto full_name = [&](const std::string& key) { return parameter + "." + key; };
  const bool has_none = std::none_of(state.begin(), state.end(), [&](const auto& entry) {
    return tensors.contains(full_name(entry.first));
  });
  if (has_none) return false;
  for (const auto& [key, tensor] : state) {
    const auto found = tensors.extract(full_name(key));
    if (found.empty()) refuse(origin, fmt::format("a tensor {}", full_name(key)), "none");
    const auto& value = found.mapped();
    const auto expected = TensorForm::of_values(tensor);
    const auto got = TensorForm::of_values(value);
    if (got != expected) refuse(origin, found.key() + " as " + expected.text(), got.text());
    check_numbers(found.key(), key, value, origin);
    tensor.copy_(value);
  }
  return true;
}

std::vector<StepCheck>& step_checks() {
  static std::vector<StepCheck> checks;
  return checks;
}

}  // namespace

std::vector<torch::Tensor> parameters_of(const torch::optim::Optimizer& optimizer) {
  std::vector<torch::Tensor> all;
  for (const auto& group : optimizer.param_groups()) {
    all.insert(all.end(), group.params().begin(), group.params().end());
  }
  return all;
}

void check_option(std::string_view optimizer, std::string_view name, double value,
                  OptionRange range) {
  if (is_inside(value, range)) return;
  throw UsageError::out_of_range(fmt::format("{} {}", optimizer, name), value, text_of(range),
                                 "the default is Python's: leave it unset");
}

void check_option(const JsonReader& saved, std::string_view name, double value, OptionRange range) {
  if (is_inside(value, range)) return;
  saved.refuse(fmt::format("{} for {}", text_of(range), name), fmt::format("{}", value));
}

FusedOptimizer::FusedOptimizer(std::vector<torch::Tensor> parameters,
                               std::unique_ptr<Options> options)
    : Optimizer(std::vector<torch::optim::OptimizerParamGroup>{}, std::move(options)) {
  add_param_group({std::move(parameters)});
}

void FusedOptimizer::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  if (shard_) {
    throw UsageError::conflict("optimizer", "a parameter group after the state was divided",
                               "add all groups before ZeroRedundancyOptimizer or prepare");
  }
  if (group.has_options() && typeid(group.options()) != typeid(defaults())) {
    throw UsageError::conflict(
        "optimizer", "a parameter group with the options of another class",
        "parameter_group(parameters, options) with this optimizer's options");
  }
  auto own = group;
  own.params() = unique_tensors(group.params());
  for (const auto& parameter : own.params()) {
    const auto is_own = [&](const torch::Tensor& known) { return known.is_same(parameter); };
    const auto has_it = [&](const auto& known) {
      return std::ranges::any_of(known.params(), is_own);
    };
    const auto refuse_it = [&](const char* problem, const char* hint) {
      throw UsageError::conflict(
          "optimizer",
          fmt::format("a parameter, {}, {}", TensorForm::of_values(parameter).text(), problem),
          hint);
    };
    if (std::ranges::any_of(param_groups_, has_it)) {
      refuse_it("is in two groups", "list each parameter in one group");
    }
    if (parameter.is_complex()) {
      refuse_it("is complex", "register torch::view_as_real(parameter).clone() in the network");
    }
    if (!parameter.is_non_overlapping_and_dense()) {
      refuse_it("shares its memory or has gaps", "register parameter.contiguous() in the network");
    }
  }
  Optimizer::add_param_group(own);
  ++replacements_;
}

torch::Tensor FusedOptimizer::step(LossClosure closure) {
  torch::Tensor loss;
  if (closure) {
    const torch::AutoGradMode with_gradients(true);
    loss = closure();
  }
  step_scaled({});
  return loss;
}

void check_before_steps(StepCheck check) {
  auto& checks = step_checks();
  if (std::ranges::find(checks, check) == checks.end()) checks.push_back(check);
}

void FusedOptimizer::step_scaled(const GradScaling& scaling) {
  const torch::NoGradGuard no_grad;
  if (std::ranges::all_of(param_groups_,
                          [](const auto& group) { return group.params().empty(); })) {
    throw UsageError::conflict("optimizer", "no parameters",
                               "build the network's layers with register_module");
  }
  for (const auto check : step_checks()) check(*this);
  const auto step_all = [&] {
    if (shard_) return shard_->step(scaling);
    for (const auto& group : param_groups_) step_group(group, scaling);
  };
  if (uses_device_rates_) return step_all();  // a captured step must not look at the weights
  lost_steps_.watch(*this, step_all, scaling.found_inf);
}

void FusedOptimizer::use_device_rates(bool use) {
  if (shard_ || !can_use_device_rates()) {
    throw UsageError::conflict("StepGraph",
                               shard_ ? "the state of the optimizer is divided among ranks"
                                      : "the kernels of this optimizer keep their learning rate",
                               "use Adam, AdamW or SGD of ladder/optim/, or steps without a graph");
  }
  uses_device_rates_ = use;
  if (use) send_rates();
}

void FusedOptimizer::send_rates() {
  const torch::NoGradGuard no_grad;
  device_rates_.resize(param_groups_.size());
  for (std::size_t i = 0; i < param_groups_.size(); ++i) {
    if (param_groups_[i].params().empty()) continue;
    auto& [tensor, sent] = device_rates_[i];
    const double rate = param_groups_[i].options().get_lr();
    if (rate == sent) continue;
    if (!tensor.defined()) tensor = no_steps(param_groups_[i].params().front());
    tensor.fill_(rate);
    sent = rate;
  }
}

const torch::Tensor* FusedOptimizer::device_rate(
    const torch::optim::OptimizerParamGroup& group) const {
  if (!uses_device_rates_) return nullptr;
  return &device_rates_[static_cast<std::size_t>(&group - param_groups_.data())].tensor;
}

void FusedOptimizer::consolidate_state_dict() {
  const torch::NoGradGuard no_grad;
  if (shard_) shard_->consolidate();
}

nlohmann::json FusedOptimizer::group_options() const {
  auto all = nlohmann::json::array();
  for (const auto& group : param_groups_) all.push_back(json_of(group.options()));
  return all;
}

OptimizerState FusedOptimizer::state_dict(const torch::nn::Module& module) const {
  if (shard_) shard_->require_consolidated();
  const auto names = group_names(*this, module);
  OptimizerState result{{}, group_options()};
  for (std::size_t i = 0; i < param_groups_.size(); ++i) {
    result.groups[i]["params"] = names[i];
    for (std::size_t j = 0; j < names[i].size(); ++j) {
      const auto found = state_.find(param_groups_[i].params()[j].unsafeGetTensorImpl());
      if (found == state_.end()) continue;
      for (const auto& [key, tensor] : static_cast<const State&>(*found->second).tensors) {
        result.tensors.emplace(names[i][j] + "." + key, tensor);
      }
    }
  }
  return result;
}

std::vector<std::unique_ptr<FusedOptimizer::Options>> FusedOptimizer::plan_options(
    const GroupNames& names, const nlohmann::json& groups, std::string_view origin) const {
  if (!groups.is_array() || groups.size() != names.size()) {
    refuse(origin, fmt::format("{} parameter groups", names.size()),
           groups.is_array() ? fmt::format("{}", groups.size()) : "no array");
  }
  std::vector<std::unique_ptr<Options>> result;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const JsonReader saved(groups[i], json_data_error(origin, kHint),
                           fmt::format(" in group {}", i));
    expect_params(saved, names[i]);
    result.push_back(options_from(saved));
  }
  return result;
}

FusedOptimizer::States FusedOptimizer::plan_states(
    const GroupNames& names, const std::vector<std::unique_ptr<Options>>& options,
    StateDict tensors, std::string_view origin) const {
  States result;
  for (std::size_t i = 0; i < names.size(); ++i) {
    for (std::size_t j = 0; j < names[i].size(); ++j) {
      const auto& parameter = param_groups_[i].params()[j];
      auto state = std::make_unique<State>();
      state->tensors = new_state(*options[i], parameter);
      if (!take_values(state->tensors, names[i][j], tensors, origin)) continue;
      result.emplace(parameter.unsafeGetTensorImpl(), std::move(state));
    }
  }
  if (!tensors.empty()) {
    refuse(origin, "tensors of the optimizer's parameters alone",
           quoted_for_message(tensors.begin()->first));
  }
  return result;
}

std::function<void()> FusedOptimizer::plan_load(const torch::nn::Module& module,
                                                OptimizerState state, std::string_view origin) {
  const torch::NoGradGuard no_grad;
  const auto names = group_names(*this, module);
  auto options = std::make_shared<std::vector<std::unique_ptr<Options>>>(
      plan_options(names, state.groups, origin));
  auto states =
      std::make_shared<States>(plan_states(names, *options, std::move(state.tensors), origin));
  return [this, options, states] {
    for (std::size_t i = 0; i < options->size(); ++i) {
      param_groups_[i].set_options(std::move((*options)[i]));
    }
    state_ = std::move(*states);
    ++replacements_;
    if (shard_) shard_->divide();
  };
}

void FusedOptimizer::load_state_dict(const torch::nn::Module& module, OptimizerState state,
                                     std::string_view origin) {
  plan_load(module, std::move(state), origin)();
}

std::vector<torch::Tensor> FusedOptimizer::parameters_with_gradient(
    const torch::optim::OptimizerParamGroup& group) {
  std::vector<torch::Tensor> parameters;
  for (const auto& parameter : group.params()) {
    auto gradient = parameter.grad();
    if (!gradient.defined()) continue;
    require_dense_gradient("optimizer", "a parameter", gradient);
    if (is_laid_out_otherwise(gradient, parameter)) {
      parameter.mutable_grad() = laid_out_like(parameter, gradient);
    }
    parameters.push_back(parameter);
  }
  return parameters;
}

const StateDict& FusedOptimizer::state_of(const torch::optim::OptimizerParamGroup& group,
                                          const torch::Tensor& parameter) {
  auto& slot = state_[parameter.unsafeGetTensorImpl()];
  if (slot == nullptr) {
    auto state = std::make_unique<State>();
    state->tensors = new_state(group.options(), parameter);
    slot = std::move(state);
  }
  auto& tensors = static_cast<State&>(*slot).tensors;
  for (auto& [name, tensor] : tensors) {
    if (is_laid_out_otherwise(tensor, parameter)) tensor.set_data(laid_out_like(parameter, tensor));
  }
  return tensors;
}

FusedOptimizer::StepTensors FusedOptimizer::step_tensors(
    const torch::optim::OptimizerParamGroup& group) {
  StepTensors all{.parameters = parameters_with_gradient(group), .gradients = {}, .states = {}};
  for (const auto& parameter : all.parameters) {
    all.gradients.push_back(parameter.grad());
    for (const auto& [name, tensor] : state_of(group, parameter)) {
      all.states[name].push_back(tensor);
    }
  }
  return all;
}

void FusedOptimizer::uncount_if_skipped(const std::vector<torch::Tensor>& steps,
                                        const GradScaling& scaling) {
  if (!scaling.found_inf) return;
  at::_foreach_sub_(steps, std::vector<torch::Tensor>(steps.size(), *scaling.found_inf));
}

}  // namespace ladder
