// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/autograd/function_hook.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ladder/comm/process_group.h"

namespace ladder {

// Marks parameters, averages nothing: gradient_reducer.h averages.
//
// Weights that train alone: an optimizer steps them, and no wrapper averages their gradients over
// the ranks. Examples are a tensor beside the parameters of a wrapped module, a parameter that is
// registered after the wrapper, and a network that is not prepared.
//
// A wrapper marks the parameters that it averages. Two checks find the others: require_averaged
// before the first step of an optimizer that the library sees, and LocalLeaves in the second
// backward, whatever steps them. Neither refuses gradients that a program averages by itself.

// The mark, which is also the hook of the wrapper: it calls `arrived` in a backward.
class AveragedGradient : public torch::autograd::FunctionPreHook {
 public:
  using Arrived = std::function<void(const torch::Tensor& gradient)>;

  // Marks `parameter` of `module` while the result lives. The group of one rank declares weights of
  // this rank alone. Throws UsageError for a parameter that a wrapper has marked for several ranks,
  // unless both of them set `allows_others`.
  [[nodiscard]] static std::shared_ptr<void> mark(const torch::Tensor& parameter,
                                                  const torch::nn::Module& module,
                                                  const ProcessGroup& group,
                                                  Arrived arrived = nullptr,
                                                  bool allows_others = false);

  // That of a parameter; nullptr without one.
  static const AveragedGradient* find(const torch::Tensor& parameter);

  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    if (arrived_) arrived_(gradients.front());
    return gradients;
  }

  const ProcessGroup& group() const { return group_; }
  const torch::nn::Module& module() const { return *module_; }
  bool allows_others() const { return allows_others_; }

 private:
  AveragedGradient(const torch::nn::Module& module, ProcessGroup group, Arrived arrived,
                   bool allows_others)
      : module_(&module),
        group_(std::move(group)),
        arrived_(std::move(arrived)),
        allows_others_(allows_others) {}

  const torch::nn::Module* module_;
  ProcessGroup group_;
  Arrived arrived_;
  bool allows_others_;
};

// Throws UsageError, on all ranks, for a parameter of `optimizer` without the mark whose gradients
// differ between the ranks. `group`: of the optimizer; null = that of a marked parameter, if there
// is one. A collective if some are not marked.
void require_averaged(const torch::optim::Optimizer& optimizer,
                      const ProcessGroup* group = nullptr);

// The leaves of a graph that are not marked. They may be data, such as inputs of which the loss
// takes a gradient: an error are those that change from one backward to another, and differ between
// the ranks.
class LocalLeaves {
 public:
  // Within a backward: notes the leaves of its graph.
  void note();

  // After it: throws UsageError, on all ranks, for a leaf that an earlier graph had too. A
  // collective if there is one. As long as none changes, the intervals between two checks double.
  void compare(const torch::nn::Module* module, const ProcessGroup& group);

 private:
  struct Known {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    torch::Tensor size;  // the sum of squares
  };

  std::vector<torch::Tensor> noted_;
  std::unordered_map<const void*, Known> known_;
  std::int64_t backwards_ = 0;
  std::int64_t next_ = 0;  // the backward of the next check
};

}  // namespace ladder
