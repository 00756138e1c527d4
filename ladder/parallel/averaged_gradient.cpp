// SPDX-License-Identifier: Apache-2.0
// Marks parameters, averages nothing: gradient_reducer.cpp averages.
#include "ladder/parallel/averaged_gradient.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/utils.h>

#include <algorithm>
#include <memory>
#include <string>
#include <typeinfo>

#include "ladder/comm/texts.h"
#include "ladder/core/error.h"
#include "ladder/core/tensor_form.h"
#include "ladder/core/text.h"
#include "ladder/nn/state_dict.h"
#include "ladder/optim/fused_optimizer.h"
#include "ladder/optim/network_part.h"

namespace ladder {
namespace {

std::string name_of(const torch::Tensor& tensor, const torch::nn::Module* module) {
  const auto parameters = module == nullptr ? torch::OrderedDict<std::string, torch::Tensor>()
                                            : module->named_parameters();
  for (const auto& item : parameters) {
    if (item.value().is_same(tensor)) return item.key();
  }
  return "a tensor, " + TensorForm::of_values(tensor).text();
}

// An optimizer steps the parts: while the network is whole, its parameters have no gradient.
void require_divided(const torch::Tensor& parameter) {
  const auto* const shard = shard_of(parameter);
  if (shard == nullptr || !shard->is_whole || shard->count == shard->numel()) return;
  throw UsageError::conflict(
      "optimizer", "FullyShardedDataParallel has made the network whole",
      "call reshard() or train() before step(); after no_sync, one backward");
}

[[noreturn]] void refuse(const std::string& name) {
  throw UsageError::conflict(
      "optimizer",
      fmt::format("no wrapper averages the gradient of {}, which differs between the ranks", name),
      "register it in the module before the wrapper, or prepare its network; for weights of one "
      "rank alone: GradientReducer(*module, ProcessGroup::single())");
}

// Two reducers whose buckets hold one gradient would each refuse that of the other. If only one of
// them does, the other divides an average again. A reducer beside exact sums rounds them, and one
// whose parameters are divided fails in the backward.
void require_unwrapped(const torch::Tensor& parameter, const torch::nn::Module& module,
                       bool allows_others) {
  for (const auto& hook : torch::autograd::impl::hooks(parameter)) {
    const auto* const mark = dynamic_cast<const AveragedGradient*>(hook.get());
    if (mark == nullptr || mark->group().world_size() == 1) continue;
    if (allows_others && mark->allows_others()) continue;
    throw UsageError::conflict(
        "wrapper", fmt::format("another wrapper has {} already", name_of(parameter, &module)),
        "wrap a module once, and networks that share parameters as one module; or wrap each in "
        "DistributedDataParallel with gradient_as_bucket_view = false, and call one backward for "
        "the sum of their losses");
  }
}

}  // namespace

std::shared_ptr<void> AveragedGradient::mark(const torch::Tensor& parameter,
                                             const torch::nn::Module& module,
                                             const ProcessGroup& group, Arrived arrived,
                                             bool allows_others) {
  if (group.world_size() > 1) require_unwrapped(parameter, module, allows_others);
  // The list of register_hook(), which would clear the mark if it came later.
  const auto* const meta = torch::autograd::impl::materialize_autograd_meta(parameter);
  if (meta->cpp_hooks_list_ == nullptr) torch::autograd::impl::create_cpp_hook(parameter);
  check_before_steps([](const auto& optimizer) { require_averaged(optimizer); });
  auto* const mark = new AveragedGradient(module, group, std::move(arrived), allows_others);
  auto& hooks = torch::autograd::impl::hooks(parameter);
  hooks.push_back(std::unique_ptr<FunctionPreHook>(mark));
  return {mark, [parameter](AveragedGradient* own) {
            std::erase_if(torch::autograd::impl::hooks(parameter),
                          [own](const auto& hook) { return hook.get() == own; });
          }};
}

const AveragedGradient* AveragedGradient::find(const torch::Tensor& parameter) {
  for (const auto& hook : torch::autograd::impl::hooks(parameter)) {
    if (const auto* own = dynamic_cast<const AveragedGradient*>(hook.get())) return own;
  }
  return nullptr;
}

void require_averaged(const torch::optim::Optimizer& optimizer, const ProcessGroup* group) {
  const AveragedGradient* mark = nullptr;
  std::vector<torch::Tensor> others;
  for (const auto& parameters : optimizer.param_groups()) {
    for (const auto& parameter : parameters.params()) {
      if (!parameter.requires_grad()) continue;
      require_divided(parameter);
      const auto* const own = AveragedGradient::find(parameter);
      if (own == nullptr) others.push_back(parameter);
      if (own != nullptr && own->group().world_size() > 1) mark = own;
    }
  }
  if (group == nullptr && mark != nullptr) group = &mark->group();
  if (others.empty() || group == nullptr || group->world_size() == 1) return;
  std::vector<std::string> digests;
  for (const auto& parameter : others) {
    const auto& gradient = parameter.grad();
    digests.push_back(gradient.defined() ? tensor_digest(gradient.to_dense()) : "none");
  }
  const auto odd = first_disagreement(digests, *group);
  if (!odd || odd->line >= others.size()) return;
  refuse(name_of(others[odd->line], mark ? &mark->module() : nullptr));
}

void LocalLeaves::note() {
  noted_.clear();
  if (backwards_++ < next_) return;
  for (auto* const node : *torch::autograd::get_current_graph_task_nodes_in_graph()) {
    if (typeid(*node) != typeid(torch::autograd::AccumulateGrad)) continue;
    const auto& leaf = static_cast<torch::autograd::AccumulateGrad*>(node)->variable;
    if (leaf.requires_grad() && AveragedGradient::find(leaf) == nullptr) noted_.push_back(leaf);
  }
}

void LocalLeaves::compare(const torch::nn::Module* module, const ProcessGroup& group) {
  const torch::NoGradGuard no_grad;
  std::erase_if(known_, [](const auto& each) { return each.second.tensor.expired(); });
  std::string lines;
  for (const auto& leaf : std::exchange(noted_, {})) {
    const auto size = leaf.abs().square().sum(torch::kDouble);
    Known now{c10::weak_intrusive_ptr<c10::TensorImpl>(leaf.getIntrusivePtr()), size};
    const auto [place, is_new] = known_.try_emplace(leaf.unsafeGetTensorImpl(), std::move(now));
    if (is_new) continue;
    const bool changed = !torch::equal(std::exchange(place->second.size, size), size);
    lines +=
        fmt::format("{}{} {}\n", changed ? '+' : '=', tensor_digest(leaf), name_of(leaf, module));
  }
  if (lines.empty()) return;
  const auto all = all_gather_text(lines, group);
  bool changed = false;
  for (const auto& line : split(fmt::format("{}", fmt::join(all, "")), '\n')) {
    if (!line.starts_with('+')) continue;
    changed = true;
    const auto has_it = [&](const auto& text) { return text.find(line.substr(1)) != text.npos; };
    if (!std::ranges::all_of(all, has_it)) refuse(line.substr(line.find(' ') + 1));
  }
  if (!changed) next_ = 2 * backwards_;
}

}  // namespace ladder
