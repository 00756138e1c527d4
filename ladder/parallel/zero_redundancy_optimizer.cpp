// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/zero_redundancy_optimizer.h"

#include <fmt/core.h>
#include <torch/types.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ladder/comm/c10d_group.h"
#include "ladder/comm/texts.h"
#include "ladder/core/error.h"
#include "ladder/core/tensor_form.h"
#include "ladder/optim/network_part.h"
#include "ladder/parallel/flat_layout.h"

namespace ladder {
namespace {

using Group = torch::optim::OptimizerParamGroup;

constexpr const char* kZero = "ZeroRedundancyOptimizer";

}  // namespace

class ZeroRedundancyOptimizer::Parts : public FusedOptimizer::Shard {
 public:
  Parts(FusedOptimizer& optimizer, ProcessGroup group)
      : optimizer_(&optimizer), group_(std::move(group)) {
    const torch::NoGradGuard no_grad;
    require_same_parameters();
    move_to_one_block();
    const auto begin = group_.rank() * share_, end = begin + share_;
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < groups().size(); ++i) {
      for (const auto& parameter : groups()[i].params()) {
        const auto first = std::max(offset, begin);
        const auto last = std::min(offset + parameter.numel(), end);
        if (first < last) {
          parts_.push_back({.group = i,
                            .parameter = parameter,
                            .begin = first - offset,
                            .weights = block_.narrow(0, first, last - first)});
        }
        offset += aligned(parameter.numel());
      }
    }
  }

  void step(const GradScaling& scaling) override {
    for_each_parameter([&](const torch::Tensor& parameter) {
      if (parameter.is_alias_of(block_)) return;
      throw UsageError::conflict(kZero, "a parameter has moved to other memory since construction",
                                 "call Module::to, or prepare the model, before");
    });
    drop_whole_states();
    for (std::size_t i = 0; i < groups().size(); ++i) step_group(i, scaling);
    group_.all_gather_into_tensor(block_, block_.narrow(0, group_.rank() * share_, share_));
    for_each_parameter(
        [](const auto& parameter) { parameter.unsafeGetTensorImpl()->bump_version(); });
  }

  void consolidate() override {
    drop_whole_states();
    for (const auto& group : groups()) {
      for (const auto& parameter : group.params()) gather_state(group, parameter);
    }
    consolidated_ = group_.rank() == 0;
  }

  void require_consolidated() const override {
    if (consolidated_) return;
    throw UsageError::conflict(kZero, "its state is divided among the ranks",
                               "call optimizer.consolidate_state_dict() on all ranks, then "
                               "state_dict() on rank 0");
  }

  void divide() override {
    for (const auto& part : parts_) {
      const auto found = optimizer_->state_.find(part.parameter.unsafeGetTensorImpl());
      if (found == optimizer_->state_.end()) continue;
      auto state = std::make_unique<FusedOptimizer::State>();
      for (const auto& [name, whole] : tensors_of(*found->second)) {
        const bool by_element = whole.sizes() == part.parameter.sizes();
        state->tensors[name] = (by_element ? part.of(whole) : whole).clone();
      }
      optimizer_->state_[part.weights.unsafeGetTensorImpl()] = std::move(state);
    }
    drop_whole_states();
  }

  std::int64_t state_bytes() const {
    std::int64_t bytes = 0;
    for (const auto& part : parts_) {
      for (const auto& [name, tensor] : state_of(part)) {
        bytes += static_cast<std::int64_t>(tensor.nbytes());
      }
    }
    return bytes;
  }

 private:
  // The range of a parameter that this rank steps.
  struct Part {
    std::size_t group;
    torch::Tensor parameter;
    std::int64_t begin;
    torch::Tensor weights;

    torch::Tensor of(const torch::Tensor& whole) const {
      return in_memory_order(whole).narrow(0, begin, weights.numel());
    }
  };

  std::vector<Group>& groups() const { return optimizer_->param_groups(); }

  template <typename Function>
  void for_each_parameter(const Function& function) const {
    for (const auto& group : groups()) {
      for (const auto& parameter : group.params()) function(parameter);
    }
  }

  // Otherwise a rank would step a part of another parameter.
  void require_same_parameters() const {
    std::vector<std::string> own;
    for_each_parameter([&](const auto& parameter) {
      require_no_parts(kZero, {parameter}, group_);
      own.push_back(
          fmt::format("parameter {} {}", own.size(), TensorForm::of_memory(parameter).text()));
    });
    require_agreement(group_, kZero, own, "build the same network on every rank");
  }

  void move_to_one_block() {
    std::int64_t elements = 0;
    torch::TensorOptions options;
    for_each_parameter([&](const auto& parameter) {
      if (elements == 0) options = parameter.options();
      const auto dtype = c10::typeMetaToScalarType(options.dtype());
      TensorForm{.dtype = dtype, .device = options.device()}.require(
          parameter, kZero, "make one optimizer per device and dtype");
      elements += aligned(parameter.numel());
    });
    share_ = aligned((elements + group_.world_size() - 1) / group_.world_size());
    block_ = torch::zeros({share_ * group_.world_size()}, options.requires_grad(false));
    std::int64_t offset = 0;
    for_each_parameter([&](const torch::Tensor& parameter) {
      const auto place = block_.as_strided(parameter.sizes(), parameter.strides(), offset);
      place.copy_(parameter);
      parameter.set_data(place);
      offset += aligned(parameter.numel());
    });
    share_memory(group_, {block_});
  }

  // Steps the parts of a group with its present options.
  void step_group(std::size_t index, const GradScaling& scaling) {
    FusedOptimizer::parameters_with_gradient(groups()[index]);  // in the strides of the parameters
    Group own({}, groups()[index].options().clone());
    for (const auto& part : parts_) {
      if (part.group != index || !part.parameter.grad().defined()) continue;
      part.weights.mutable_grad() = part.of(part.parameter.grad());
      own.params().push_back(part.weights);
    }
    if (own.params().empty()) return;
    optimizer_->step_group(own, scaling);
    for (const auto& weights : own.params()) weights.mutable_grad().reset();
  }

  static const StateDict& tensors_of(const torch::optim::OptimizerParamState& state) {
    return static_cast<const FusedOptimizer::State&>(state).tensors;
  }

  StateDict state_of(const Part& part) const {
    const auto found = optimizer_->state_.find(part.weights.unsafeGetTensorImpl());
    return found == optimizer_->state_.end() ? StateDict() : tensors_of(*found->second);
  }

  void drop_whole_states() {
    for_each_parameter(
        [&](const auto& parameter) { optimizer_->state_.erase(parameter.unsafeGetTensorImpl()); });
    consolidated_ = false;
  }

  // Rank 0 gets the state of `parameter`, if it has one.
  void gather_state(const Group& group, const torch::Tensor& parameter) {
    const auto own = std::ranges::find_if(
        parts_, [&](const auto& part) { return part.parameter.is_same(parameter); });
    const auto state = own == parts_.end() ? StateDict() : state_of(*own);
    auto whole = std::make_unique<FusedOptimizer::State>();
    for (auto& [name, tensor] : optimizer_->new_state(group.options(), parameter)) {
      const auto found = state.find(name);
      const auto part = found == state.end() ? tensor.new_empty({0}) : found->second.flatten();
      const auto parts = group_.gather(part, 0);
      if (group_.rank() != 0) continue;
      const auto all = torch::cat(parts);
      if (all.numel() == 0) continue;  // not stepped so far
      const bool by_element = tensor.sizes() == parameter.sizes();
      by_element ? in_memory_order(tensor).copy_(all) : tensor.copy_(all[0]);
      whole->tensors.emplace(name, tensor);
    }
    if (whole->tensors.empty()) return;
    optimizer_->state_[parameter.unsafeGetTensorImpl()] = std::move(whole);
  }

  FusedOptimizer* optimizer_;
  ProcessGroup group_;
  torch::Tensor block_;      // the weights of all parameters
  std::int64_t share_ = 0;   // elements of a rank
  std::vector<Part> parts_;  // of this rank
  bool consolidated_ = false;
};

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(torch::optim::Optimizer& optimizer,
                                                 ProcessGroup group) {
  auto* const fused = dynamic_cast<FusedOptimizer*>(&optimizer);
  if (fused == nullptr) {
    throw UsageError::conflict(kZero, "an optimizer of another library",
                               "use ladder::AdamW or ladder::SGD");
  }
  if (fused->shard_ != nullptr || !optimizer.state().empty()) {
    throw UsageError::conflict(kZero, "an optimizer that has a state already",
                               "construct it before the first step and before a state is loaded");
  }
  parts_ = std::make_shared<Parts>(*fused, std::move(group));
  fused->shard_ = parts_;
}

std::int64_t ZeroRedundancyOptimizer::state_bytes() const { return parts_->state_bytes(); }

}  // namespace ladder
