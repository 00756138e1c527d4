// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <memory>
#include <optional>
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

// What a GradScaler knows about the gradients when a step begins; see FusedOptimizer::step_scaled.
struct GradScaling {
  std::optional<torch::Tensor> grad_scale;  // float32 scalar to divide the gradients by
  std::optional<torch::Tensor> found_inf;   // float32 scalar: 1 = a gradient is inf or NaN, else 0
};

// What AdamW and SGD share: a step is one call of a fused kernel for each parameter group.
class FusedOptimizer : public torch::optim::Optimizer {
 public:
  // Moves every parameter along its gradient. A closure, when given, computes the loss first,
  // with gradients turned on; its loss is returned.
  torch::Tensor step(LossClosure closure = nullptr) override;

  // A step with gradients that a GradScaler has made larger: the kernel itself divides them (they
  // are left divided), and changes no parameter when one is not finite. Both numbers lie on the
  // parameters' device, so nobody waits for a GPU to read them.
  void step_scaled(const GradScaling& scaling);

 protected:
  using torch::optim::Optimizer::Optimizer;

  virtual void step_group(const torch::optim::OptimizerParamGroup& group,
                          const GradScaling& scaling) = 0;

  // The parameters of `group` that have a gradient: those that a step moves.
  static std::vector<torch::Tensor> parameters_with_gradient(
      const torch::optim::OptimizerParamGroup& group);
};

}  // namespace ladder
