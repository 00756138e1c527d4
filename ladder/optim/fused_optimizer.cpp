// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/fused_optimizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <unordered_map>

#include "ladder/checkpoint/quoted.h"
#include "ladder/core/error.h"
#include "ladder/optim/saved_options.h"

namespace ladder {
namespace {

constexpr const char* kStep = "step";

// The name of every parameter of a module, by its identity.
using Names = std::unordered_map<const void*, std::string>;

Names names_of(const torch::nn::Module& module) {
  Names names;
  std::map<std::string, const void*> owners;
  for (const auto& item : module.named_parameters()) {
    const void* parameter = item.value().unsafeGetTensorImpl();
    const auto name = without_module_prefix(item.key());
    if (owners.emplace(name, parameter).first->second != parameter) {
      throw UsageError::conflict("optimizer state",
                                 fmt::format("two parameters are {} without \"module.\"", name),
                                 "give one of them another name");
    }
    names.emplace(parameter, name);
  }
  return names;
}

const std::string& name_of(const torch::Tensor& parameter, const Names& names) {
  const auto found = names.find(parameter.unsafeGetTensorImpl());
  if (found != names.end()) return found->second;
  throw UsageError::conflict("optimizer state",
                             fmt::format("a parameter of shape [{}] is none of the module's",
                                         fmt::join(parameter.sizes(), ",")),
                             "give the module whose parameters() the optimizer was made with");
}

// The names of an optimizer's parameters, a row a group.
std::vector<std::vector<std::string>> group_names(const torch::optim::Optimizer& optimizer,
                                                  const torch::nn::Module& module) {
  const auto names = names_of(module);
  std::vector<std::vector<std::string>> result;
  for (const auto& group : optimizer.param_groups()) {
    auto& row = result.emplace_back();
    for (const auto& parameter : group.params()) row.push_back(name_of(parameter, names));
  }
  return result;
}

[[noreturn]] void refuse(std::string_view origin, const std::string& expected,
                         const std::string& got) {
  throw DataError::mismatch(origin, expected, got,
                            "is this the state of another optimizer or network?");
}

std::string form_of(const torch::Tensor& tensor) {
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes(), ","));
}

void check_tensor(const std::string& name, const torch::Tensor& wanted, const torch::Tensor& value,
                  std::string_view origin) {
  if (form_of(value) != form_of(wanted)) {
    refuse(origin, fmt::format("{} as {}", name, form_of(wanted)), form_of(value));
  }
}

void check_count(const std::string& name, const torch::Tensor& value, std::string_view origin) {
  const auto count = value.item<double>();
  if (count >= 0.0 && std::isfinite(count) && std::floor(count) == count) return;
  refuse(origin, fmt::format("a count of steps as {}", name), fmt::format("{}", count));
}

// Moves the values of one parameter out of `tensors`, into `state`. False if there are none.
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
    check_tensor(found.key(), tensor, found.mapped(), origin);
    if (key == kStep) check_count(found.key(), found.mapped(), origin);
    tensor.copy_(found.mapped());
  }
  return true;
}

}  // namespace

torch::Tensor FusedOptimizer::step(LossClosure closure) {
  torch::Tensor loss;
  if (closure) {
    const torch::AutoGradMode with_gradients(true);
    loss = closure();
  }
  step_scaled({});
  return loss;
}

void FusedOptimizer::step_scaled(const GradScaling& scaling) {
  const torch::NoGradGuard no_grad;
  for (const auto& group : param_groups_) step_group(group, scaling);
}

OptimizerState FusedOptimizer::state_dict(const torch::nn::Module& module) const {
  const auto names = group_names(*this, module);
  OptimizerState result{{}, nlohmann::json::array()};
  for (std::size_t i = 0; i < param_groups_.size(); ++i) {
    auto json = json_of(param_groups_[i].options());
    json["params"] = names[i];
    result.groups.push_back(std::move(json));
    for (std::size_t j = 0; j < names[i].size(); ++j) {
      const auto found = state_.find(param_groups_[i].params()[j].unsafeGetTensorImpl());
      if (found == state_.end()) continue;
      for (const auto& [key, tensor] : tensors_of(*found->second)) {
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
    const SavedOptions saved(groups[i], i, origin);
    saved.expect_params(names[i]);
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
      auto state = new_state(*options[i], parameter);
      if (state == nullptr) continue;
      if (!take_values(tensors_of(*state), names[i][j], tensors, origin)) continue;
      result.emplace(parameter.unsafeGetTensorImpl(), std::move(state));
    }
  }
  if (!tensors.empty()) {
    refuse(origin, "tensors of the optimizer's parameters alone",
           in_quotes(tensors.begin()->first));
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
    if (parameter.grad().defined()) parameters.push_back(parameter);
  }
  return parameters;
}

void FusedOptimizer::uncount_if_skipped(const std::vector<torch::Tensor>& steps,
                                        const GradScaling& scaling) {
  if (!scaling.found_inf) return;
  at::_foreach_sub_(steps, std::vector<torch::Tensor>(steps.size(), *scaling.found_inf));
}

}  // namespace ladder
