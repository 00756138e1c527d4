// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ladder/io/json.h"
#include "ladder/nn/state_dict.h"
#include "ladder/optim/lost_steps.h"

namespace ladder {

// The state of an optimizer: what a run needs to continue as if it had never stopped.
// docs/formats.md, "Files", lists tensors and options of each optimizer.
struct OptimizerState {
  // "<parameter>.<name>", such as "fc1.weight.exp_avg": names as in Python and without the
  // "module." of wrappers. A parameter without a step so far has none. Shares memory with the
  // optimizer.
  StateDict tensors;

  // An array with one object per parameter group: its options under Python's names, and "params",
  // the names of its parameters in their order.
  nlohmann::json groups;
};

// Of all groups, in their order.
std::vector<torch::Tensor> parameters_of(const torch::optim::Optimizer& optimizer);

enum class OptionRange { kAny, kFromZero, kFromZeroBelowOne };

// A field of the options struct `Values` of an optimizer: one row gives its check, and its place in
// a file.
template <typename Values>
struct OptionField {
  std::string_view name;              // Python's
  double Values::* number = nullptr;  // or:
  bool Values::* flag = nullptr;      // neither: false in every file
  OptionRange range = OptionRange::kFromZero;
  std::string_view list = "";  // in a file an item of this list, in the order of the rows
};

// Throws UsageError, which begins with the class `optimizer`, for a number outside of its range.
void check_option(std::string_view optimizer, std::string_view name, double value,
                  OptionRange range);
// The same for a number of a file, which `saved` refuses.
void check_option(const JsonReader& saved, std::string_view name, double value, OptionRange range);

// Wraps an options struct with a field `lr` for torch::optim::Optimizer, which needs a class of its
// own per optimizer.
template <typename Options>
struct GroupOptions : torch::optim::OptimizerCloneableOptions<GroupOptions<Options>> {
  explicit GroupOptions(Options options) : values(std::move(options)) {}

  double get_lr() const override { return values.lr; }
  void set_lr(double lr) override { values.lr = lr; }

  Options values;
};

// The options of `group`, with its present learning rate.
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

// What a GradScaler passes to a step; see FusedOptimizer::step_scaled.
struct GradScaling {
  std::optional<torch::Tensor> grad_scale;  // float32 scalar to divide the gradients by
  std::optional<torch::Tensor> found_inf;   // float32 scalar: 1 = a gradient is inf or NaN, else 0
};

// The base of the optimizers. A step is one call of a fused kernel per parameter group (RMSprop has
// no such kernel). The state can be saved and loaded bit for bit, here or in Python.
//
// A parameter group has options of its own, such as no weight decay for the biases:
//
//     AdamWOptions options{.weight_decay = 0.1};
//     AdamW optimizer(weights, options);
//     options.weight_decay = 0.0;
//     optimizer.add_param_group(parameter_group(biases, options));
//
// The options of such a group are not checked for their ranges. A parameter that is listed twice in
// a group, as LibTorch's parameters() lists tied weights, is stepped once.
class FusedOptimizer : public torch::optim::Optimizer {
 public:
  // Throws UsageError for options of another optimizer, for a parameter that an earlier group has
  // or that is complex, for one whose elements do not fill its memory, such as a column (the
  // kernels walk over memory), and once a ZeroRedundancyOptimizer has divided the state.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  // One optimizer step. A closure, when given, computes the loss first, with gradients enabled;
  // its loss is returned. Throws UsageError if there are no parameters.
  torch::Tensor step(LossClosure closure = nullptr) override;

  // A step with gradients that a GradScaler has scaled: the kernel divides them (they stay
  // divided), and changes no parameter when one is not finite. Both numbers lie on the
  // parameters' device, so nothing waits for a GPU, except SGD with momentum until its first step
  // is taken.
  void step_scaled(const GradScaling& scaling);

  // For a step in a CUDA graph (graph/step_graph.h), whose kernels repeat the numbers of their
  // capture: after use_device_rates(true) the kernels of Adam, AdamW and SGD read the learning
  // rates from their device, in float32. send_rates sends those that have changed. Throws
  // UsageError for another optimizer, and once a ZeroRedundancyOptimizer has divided the state.
  void use_device_rates(bool use);
  void send_rates();

  // How often plan_load or add_param_group has replaced tensors or options: a captured graph then
  // has stale ones.
  std::int64_t replacements() const { return replacements_; }

  // The state, under the names that `module`, wrapped or not, gives to the parameters. Shares
  // memory with the optimizer: the next step changes it. Throws UsageError if the module lacks one
  // of the parameters, and for a divided state before consolidate_state_dict().
  OptimizerState state_dict(const torch::nn::Module& module) const;

  // Gives rank 0 the whole state, until the next step, if a ZeroRedundancyOptimizer has divided it
  // among ranks; then a collective. Else does nothing.
  void consolidate_state_dict();

  // OptimizerState::groups without "params".
  nlohmann::json group_options() const;

  // Loads a state in two steps, so that a checkpoint of several parts is applied as a whole or
  // not at all. This one checks everything, copies the values to the parameters' devices and
  // changes nothing. The function it returns applies them and cannot fail: call it at most once,
  // while the optimizer lives. It replaces the whole state and all options of the groups, such as
  // the learning rate. As in Python, make a scheduler before, because its construction sets the
  // rate.
  //
  // Throws DataError, naming `origin` (the file of the state) and the first difference: a
  // tensor that is missing, unknown, or of another shape or dtype, another number of groups, other
  // parameters or options in one, an option outside of its range. UsageError as above.
  [[nodiscard]] std::function<void()> plan_load(const torch::nn::Module& module,
                                                OptimizerState state, std::string_view origin);

  // Both steps. With a divided state, each rank loads the whole and keeps its part.
  void load_state_dict(const torch::nn::Module& module, OptimizerState state,
                       std::string_view origin);

 protected:
  using Options = torch::optim::OptimizerOptions;

  FusedOptimizer(std::vector<torch::Tensor> parameters, std::unique_ptr<Options> options);

  virtual void step_group(const torch::optim::OptimizerParamGroup& group,
                          const GradScaling& scaling) = 0;

  // The options of a group for OptimizerState::groups, and back. Reading throws DataError.
  virtual nlohmann::json json_of(const Options& options) const = 0;
  virtual std::unique_ptr<Options> options_from(const JsonReader& saved) const = 0;

  // The state of a parameter before its first step, by the names of OptimizerState; empty if it
  // never has one.
  virtual StateDict new_state(const Options& options, const torch::Tensor& parameter) const = 0;

  // Whether step_group calls the kernel with device_rate(group), unless that is nullptr.
  virtual bool can_use_device_rates() const { return false; }
  const torch::Tensor* device_rate(const torch::optim::OptimizerParamGroup& group) const;

  // A count of steps, as the kernels take it: a float32 scalar.
  static torch::Tensor no_steps(const torch::Tensor& parameter) {
    return torch::zeros({}, torch::dtype(torch::kFloat32).device(parameter.device()));
  }

  // The parameters of `group` that have a gradient, which gets the strides of its parameter.
  static std::vector<torch::Tensor> parameters_with_gradient(
      const torch::optim::OptimizerParamGroup& group);

  // The state of a parameter, new at its first step, with the strides of the parameter.
  const StateDict& state_of(const torch::optim::OptimizerParamGroup& group,
                            const torch::Tensor& parameter);

  // The parameters with a gradient, their gradients, and the tensors of their states by name.
  struct StepTensors {
    std::vector<torch::Tensor> parameters;
    std::vector<torch::Tensor> gradients;
    std::map<std::string, std::vector<torch::Tensor>> states;
  };
  StepTensors step_tensors(const torch::optim::OptimizerParamGroup& group);

  // Subtracts 1 from the step counts if the kernel skipped the step.
  static void uncount_if_skipped(const std::vector<torch::Tensor>& steps,
                                 const GradScaling& scaling);

 private:
  friend class ZeroRedundancyOptimizer;

  // This rank's part of the work; see ZeroRedundancyOptimizer.
  struct Shard {
    virtual ~Shard() = default;
    virtual void step(const GradScaling& scaling) = 0;
    virtual void consolidate() = 0;
    virtual void require_consolidated() const = 0;
    virtual void divide() = 0;  // the states of whole parameters
  };

  using GroupNames = std::vector<std::vector<std::string>>;  // of the parameters, by group
  using States = decltype(state_);

  struct State : torch::optim::OptimizerCloneableParamState<State> {
    StateDict tensors;
  };

  std::vector<std::unique_ptr<Options>> plan_options(const GroupNames& names,
                                                     const nlohmann::json& groups,
                                                     std::string_view origin) const;
  States plan_states(const GroupNames& names, const std::vector<std::unique_ptr<Options>>& options,
                     StateDict tensors, std::string_view origin) const;

  struct DeviceRate {
    torch::Tensor tensor;
    double sent = std::numeric_limits<double>::quiet_NaN();
  };

  std::shared_ptr<Shard> shard_;  // null: all of it
  bool uses_device_rates_ = false;
  std::vector<DeviceRate> device_rates_;  // by group
  std::int64_t replacements_ = 0;
  LostSteps lost_steps_;
};

// From here on, each optimizer calls `check` before a step; it may throw. For what an optimizer
// does not know: wrappers that average gradients, and recordings.
using StepCheck = void (*)(const torch::optim::Optimizer& optimizer);
void check_before_steps(StepCheck check);

// An optimizer with one table of its options.
template <typename Values>
class OptimizerOf : public FusedOptimizer {
 protected:
  using Fields = std::span<const OptionField<Values>>;

  // Throws UsageError when an option is out of its range.
  OptimizerOf(std::string_view name, std::vector<torch::Tensor> parameters, const Values& values,
              Fields fields)
      : FusedOptimizer(std::move(parameters), std::make_unique<GroupOptions<Values>>(values)),
        fields_(fields) {
    for (const auto& field : fields_) {
      if (field.number) check_option(name, field.name, values.*field.number, field.range);
    }
  }

  static const Values& values_of(const Options& options) {
    return static_cast<const GroupOptions<Values>&>(options).values;
  }

  nlohmann::json json_of(const Options& options) const override {
    const auto& values = values_of(options);
    nlohmann::json json;
    for (const auto& field : fields_) {
      if (!field.number) {
        json[field.name] = field.flag && values.*field.flag;
      } else if (field.list.empty()) {
        json[field.name] = values.*field.number;
      } else {
        json[field.list].push_back(values.*field.number);
      }
    }
    return json;
  }

  std::unique_ptr<Options> options_from(const JsonReader& saved) const override {
    std::vector<std::string> keys = {"params"};
    std::map<std::string_view, std::size_t> lists;  // with the number of their items
    for (const auto& field : fields_) {
      if (field.list.empty() || lists[field.list]++ == 0) {
        keys.emplace_back(field.list.empty() ? field.name : field.list);
      }
    }
    saved.expect_only(keys);
    Values values{};
    std::map<std::string_view, std::size_t> read;
    for (const auto& field : fields_) {
      if (!field.number) {
        const bool flag = saved.boolean(field.name);
        if (!field.flag && flag) saved.refuse_value("false", field.name);
        if (field.flag) values.*field.flag = flag;
        continue;
      }
      values.*field.number = field.list.empty()
                                 ? saved.number(field.name)
                                 : saved.numbers(field.list, lists[field.list])[read[field.list]++];
    }
    for (const auto& field : fields_) {
      if (field.number) check_option(saved, field.name, values.*field.number, field.range);
    }
    return std::make_unique<GroupOptions<Values>>(values);
  }

 private:
  Fields fields_;
};

}  // namespace ladder
