// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ladder/optim/optimizer_state.h"

namespace ladder {

class SavedOptions;

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

// Parameters with options of their own, for Optimizer::add_param_group; `Options` are those of the
// optimizer. Python: a dictionary among the parameters.
template <typename Options>
torch::optim::OptimizerParamGroup parameter_group(std::vector<torch::Tensor> parameters,
                                                  Options options) {
  return {std::move(parameters), std::make_unique<GroupOptions<Options>>(std::move(options))};
}

// What a GradScaler knows about the gradients when a step begins; see FusedOptimizer::step_scaled.
struct GradScaling {
  std::optional<torch::Tensor> grad_scale;  // float32 scalar to divide the gradients by
  std::optional<torch::Tensor> found_inf;   // float32 scalar: 1 = a gradient is inf or NaN, else 0
};

// What the optimizers of this folder share: a step is one call of a fused kernel for each parameter
// group (of RMSprop alone there is no such kernel), and the state can be saved and taken back, bit
// for bit, here or in Python.
//
// A parameter group has options of its own, such as no weight decay for the biases:
//
//     AdamWOptions options{.weight_decay = 0.1};
//     AdamW optimizer(weights, options);
//     options.weight_decay = 0.0;
//     optimizer.add_param_group(parameter_group(biases, options));
//
// The options of a group that is added so are not checked for their ranges.
class FusedOptimizer : public torch::optim::Optimizer {
 public:
  // Moves every parameter along its gradient. A closure, when given, computes the loss first,
  // with gradients turned on; its loss is returned.
  torch::Tensor step(LossClosure closure = nullptr) override;

  // A step with gradients that a GradScaler has made larger: the kernel itself divides them (they
  // are left divided), and changes no parameter when one is not finite. Both numbers lie on the
  // parameters' device, so nobody waits for a GPU to read them; RMSprop and the first steps of a
  // momentum do.
  void step_scaled(const GradScaling& scaling);

  // The state, under the names that `module`, wrapped or not, gives to the parameters. Shares
  // memory with the optimizer: the next step changes it. Throws UsageError if the module lacks one
  // of the parameters.
  OptimizerState state_dict(const torch::nn::Module& module) const;

  // Takes a state back, in two halves, so that a checkpoint of several parts is applied whole or
  // not at all. This half checks everything and copies the values to the parameters' devices, and
  // changes nothing; what it returns puts them in force and cannot fail. Call that, if at all, once
  // and while the optimizer lives. What the optimizer had gathered is dropped then, and all options
  // of the groups, such as the learning rate, are those of the state: as in Python, make a
  // scheduler before, because its construction sets the rate.
  //
  // Throws DataError, naming `origin` (the file the state came from) and the first difference: a
  // tensor that is missing, unknown, or of another shape or dtype, another number of groups, other
  // parameters or options in one, an option outside of its range. UsageError as above.
  [[nodiscard]] std::function<void()> plan_load(const torch::nn::Module& module,
                                                OptimizerState state, std::string_view origin);

  // Both halves.
  void load_state_dict(const torch::nn::Module& module, OptimizerState state,
                       std::string_view origin);

 protected:
  using torch::optim::Optimizer::Optimizer;
  using Options = torch::optim::OptimizerOptions;
  using ParamState = torch::optim::OptimizerParamState;

  virtual void step_group(const torch::optim::OptimizerParamGroup& group,
                          const GradScaling& scaling) = 0;

  // The options of a group as OptimizerState::groups has them, and back. Reading throws DataError.
  virtual nlohmann::json json_of(const Options& options) const = 0;
  virtual std::unique_ptr<Options> options_from(const SavedOptions& saved) const = 0;

  // The state of a parameter before its first step; nullptr if it never has one. And the tensors
  // of a state, by the names that follow the parameter's.
  virtual std::unique_ptr<ParamState> new_state(const Options& options,
                                                const torch::Tensor& parameter) const = 0;
  virtual StateDict tensors_of(const ParamState& state) const = 0;

  // The parameters of `group` that have a gradient: those that a step moves.
  static std::vector<torch::Tensor> parameters_with_gradient(
      const torch::optim::OptimizerParamGroup& group);

  // Takes one off counts that went up for a step which the kernel then skipped.
  static void uncount_if_skipped(const std::vector<torch::Tensor>& steps,
                                 const GradScaling& scaling);

 private:
  using GroupNames = std::vector<std::vector<std::string>>;  // of the parameters, a row a group
  using States = ska::flat_hash_map<void*, std::unique_ptr<ParamState>>;

  std::vector<std::unique_ptr<Options>> plan_options(const GroupNames& names,
                                                     const nlohmann::json& groups,
                                                     std::string_view origin) const;
  States plan_states(const GroupNames& names, const std::vector<std::unique_ptr<Options>>& options,
                     StateDict tensors, std::string_view origin) const;
};

}  // namespace ladder
