// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/replica_check.h"

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ladder/comm/c10d_group.h"
#include "ladder/comm/texts.h"
#include "ladder/core/error.h"
#include "ladder/core/log.h"
#include "ladder/core/tensor_form.h"
#include "ladder/nn/model.h"
#include "ladder/nn/state_dict.h"
#include "ladder/optim/network_part.h"
#include "ladder/parallel/version_counter_guard.h"

namespace ladder {
namespace {

void require_equal_values(const StateDict& tensors, const torch::nn::Module& module,
                          const ProcessGroup& group) {
  std::vector<std::string> lines;
  for (const auto& [name, tensor] : tensors) lines.push_back(name + ' ' + tensor_digest(tensor));
  const auto odd = first_disagreement(lines, group);
  if (!odd) return;
  const auto name = odd->expected.substr(0, odd->expected.find(' '));
  throw DistributedError::ranks_disagree(
      "replicas", odd->expected, odd->got,
      unwrapped(module).named_buffers().contains(name)
          ? "training forwards without a backward leave other buffers on each rank: call eval() of "
            "DistributedDataParallel or broadcast_buffers() of GradientReducer; with an "
            "Accelerator, end each accumulation window"
          : "gradients were not averaged, or weights were loaded, changed or stepped on some ranks "
            "only; tools/same_run finds it");
}

// int64: it wraps around, and does not depend on the order.
torch::Tensor sum_of_bits(const torch::Tensor& tensor) {
  constexpr auto kIntegers =
      std::to_array({torch::kInt8, torch::kInt16, torch::kInt32, torch::kInt64});
  const auto real = tensor.is_complex() ? torch::view_as_real(tensor) : tensor;
  const auto log_size = std::countr_zero(static_cast<unsigned>(real.element_size()));
  return real.detach().view(kIntegers[static_cast<std::size_t>(log_size)]).sum(torch::kInt64);
}

void broadcast_all(const char* operation, const std::vector<torch::Tensor>& tensors,
                   const ProcessGroup& group) {
  constexpr std::size_t kPieceBytes = std::size_t{250} << 20U;
  const torch::NoGradGuard no_grad;
  run_collective(group, operation,
                 [&] { c10d::broadcast_coalesced(c10d_group(group), tensors, kPieceBytes); });
}

}  // namespace

void require_same_parameters(const torch::nn::Module& module, const ProcessGroup& group) {
  require_no_parts("model", module.parameters(), group);
  const auto parameters = module.named_parameters();
  std::vector<std::string> lines;
  for (const auto& [name, tensor] : state_dict(module)) {
    require_own_elements("model", name, tensor);
    const auto* parameter = parameters.find(name);  // `tensor` itself is detached
    const bool is_frozen = parameter != nullptr && !parameter->requires_grad();
    lines.push_back(name + ' ' + TensorForm::of_memory(tensor).text() +
                    (is_frozen ? ", not trained" : ""));
  }
  require_agreement(group, "model", lines, "build the same network on every rank");
}

void require_equal_replicas(const torch::nn::Module& module, const ProcessGroup& group) {
  require_equal_values(unwrapped_state_dict(module), module, group);
}

void require_equal_parameters(const torch::nn::Module& module, const ProcessGroup& group) {
  StateDict parameters;
  for (const auto& item : unwrapped(module).named_parameters()) {
    parameters.emplace(item.key(), item.value());
  }
  require_equal_values(parameters, module, group);
}

void DriftWatch::compare(const std::vector<torch::Tensor>& parameters,
                         const std::vector<std::string>& names, const ProcessGroup& group) {
  if (warned_ || group.world_size() == 1 || !std::has_single_bit(++calls_)) return;
  if (parameters.empty() || !parameters.front().is_cpu()) return;  // a host would wait for its GPU
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> sums;
  for (const auto& parameter : parameters) {
    sums.push_back(sum_of_bits(parameter).to(parameters.front().device()));
  }
  const auto all = group.all_gather_into_tensor(torch::stack(sums)).cpu();
  const auto differs = (all != all[0]).nonzero();  // [rank, parameter] of each
  warned_ = differs.size(0) > 0;
  if (!warned_ || group.rank() != 0) return;
  const auto rank = differs[0][0].item<std::int64_t>();
  Log({.rank = 0, .world_size = group.world_size()})
      .warn(fmt::format(
          "replicas: {} differs between rank 0 and rank {}, as compared after backward {}; hint: "
          "load, change and step weights on all ranks alike; check_replicas = 1 stops the run "
          "where they begin to differ",
          names[static_cast<std::size_t>(differs[0][1].item<std::int64_t>())], rank, calls_));
}

void broadcast_replica(const torch::nn::Module& module, const ProcessGroup& group) {
  broadcast_all("broadcast of the model", unique_tensors(module), group);
}

void broadcast_buffers(const torch::nn::Module& module, const ProcessGroup& group) {
  const auto buffers = unique_tensors(module.buffers());
  const VersionCounterGuard keep(buffers);
  if (!buffers.empty()) broadcast_all("broadcast of the buffers", buffers, group);
}

}  // namespace ladder
