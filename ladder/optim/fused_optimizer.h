// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <memory>
#include <utility>
#include <vector>

namespace ladder {

// Carries an options struct with a field `lr` through torch::optim::Optimizer, which
// wants a class of its own kind for each optimizer.
template <typename Options>
struct GroupOptions : torch::optim::OptimizerCloneableOptions<GroupOptions<Options>> {
  explicit GroupOptions(Options options) : values(std::move(options)) {}

  double get_lr() const override { return values.lr; }
  void set_lr(double lr) override { values.lr = lr; }

  Options values;
};

// The options that `group` was made with, at their present learning rate.
template <typename Options>
const Options& options_of(const torch::optim::OptimizerParamGroup& group) {
  return static_cast<const GroupOptions<Options>&>(group.options()).values;
}

// What AdamW and SGD share: a step is one call of a fused kernel for each parameter group.
class FusedOptimizer : public torch::optim::Optimizer {
 public:
  // Moves every parameter along its gradient. A closure, when given, computes the loss first,
  // with gradients turned on; its loss is returned.
  torch::Tensor step(LossClosure closure = nullptr) override;

 protected:
  using torch::optim::Optimizer::Optimizer;

  virtual void step_group(const torch::optim::OptimizerParamGroup& group) = 0;

  // The parameters of `group` that have a gradient: those that a step moves.
  static std::vector<torch::Tensor> parameters_with_gradient(
      const torch::optim::OptimizerParamGroup& group);
};

}  // namespace ladder
