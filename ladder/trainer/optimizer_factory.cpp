// SPDX-License-Identifier: Apache-2.0
#include "ladder/trainer/optimizer_factory.h"

#include <fmt/format.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/core/text.h"
#include "ladder/io/json.h"
#include "ladder/optim/adagrad.h"
#include "ladder/optim/adam.h"
#include "ladder/optim/fused_optimizer.h"
#include "ladder/optim/reduce_lr_on_plateau.h"
#include "ladder/optim/rmsprop.h"
#include "ladder/optim/schedules.h"
#include "ladder/optim/sgd.h"

namespace ladder {
namespace {

using Tensors = std::vector<torch::Tensor>;
using OptimizerPointer = std::unique_ptr<torch::optim::Optimizer>;

constexpr const char* kKwargs = "lr_scheduler_kwargs";

bool has_decay(const std::string& name) {
  const auto text = fmt::format(".{}.", to_lower(name));
  const auto contains = [&](const char* part) { return text.find(part) != std::string::npos; };
  return !contains("bias") && !contains("layernorm") && !contains("rmsnorm") &&
         !contains(".norm.") && !contains("_norm.");
}

// The parameters of a module in the order of its named_parameters(), each once.
class ParameterGroups {
 public:
  explicit ParameterGroups(const torch::nn::Module& model) { add(model, "", false); }

  Tensors decayed;
  Tensors others;

 private:
  void add(const torch::nn::Module& module, const std::string& prefix, bool in_layer_norm) {
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      const bool is_new = seen_.insert(item.value().unsafeGetTensorImpl()).second;
      if (!is_new || !item.value().requires_grad()) continue;
      const bool decays = !in_layer_norm && has_decay(prefix + item.key());
      (decays ? decayed : others).push_back(item.value());
    }
    for (const auto& item : module.named_children()) {
      const auto* layer_norm = dynamic_cast<const torch::nn::LayerNormImpl*>(item.value().get());
      add(*item.value(), prefix + item.key() + ".", in_layer_norm || layer_norm != nullptr);
    }
  }

  std::unordered_set<const void*> seen_;
};

template <typename Optimizer, typename Options>
OptimizerPointer with_groups(ParameterGroups groups, Options options) {
  auto optimizer = std::make_unique<Optimizer>(std::move(groups.decayed), options);
  options.weight_decay = 0.0;
  optimizer->add_param_group(parameter_group(std::move(groups.others), options));
  return optimizer;
}

template <typename Options>
Options adam_options(const TrainingArguments& arguments) {
  return {.lr = arguments.learning_rate,
          .beta1 = arguments.adam_beta1,
          .beta2 = arguments.adam_beta2,
          .eps = arguments.adam_epsilon,
          .weight_decay = arguments.weight_decay};
}

template <typename Options>
Options plain_options(const TrainingArguments& arguments) {
  Options options;
  options.lr = arguments.learning_rate;
  options.weight_decay = arguments.weight_decay;
  return options;
}

// The values of lr_scheduler_kwargs, whose names must be among `names`.
class Kwargs {
 public:
  Kwargs(const std::string& text, const std::vector<std::string>& names)
      : values_(parse_untrusted_json(text, refuse)), reader_(values_, refuse) {
    for (const auto& item : values_.items()) {
      if (std::find(names.begin(), names.end(), item.key()) != names.end()) continue;
      if (!names.empty()) throw UsageError::unknown_name(kKwargs, item.key(), names);
      throw UsageError::conflict(kKwargs, fmt::format("this schedule takes no {}", item.key()),
                                 "remove it, or choose another lr_scheduler_type");
    }
  }

  double number(const char* name, double standard) const {
    return reader_.contains(name) ? reader_.number(name) : standard;
  }
  std::optional<std::int64_t> count(const char* name) const {
    if (reader_.value(name).is_null()) return std::nullopt;
    return reader_.count(name);
  }
  // Whether the value is `second`; a missing one is `first`.
  bool is_second(const char* name, const char* first, const char* second) const {
    if (!reader_.contains(name) || reader_.value(name) == first) return false;
    if (reader_.value(name) == second) return true;
    reader_.refuse_value(fmt::format("{} or {}", first, second), name);
  }

 private:
  static void refuse(const std::string& expected, const std::string& got) {
    throw UsageError::conflict(kKwargs, fmt::format("expected {}, got {}", expected, got),
                               R"(such as {"num_cycles": 2}, or {} for none)");
  }

  nlohmann::json values_;
  JsonReader reader_;
};

PlateauOptions plateau_options(const std::string& text) {
  const Kwargs kwargs(text, {"mode", "factor", "patience", "threshold", "threshold_mode",
                             "cooldown", "min_lr", "eps"});
  PlateauOptions options;
  if (kwargs.is_second("mode", "min", "max")) options.mode = PlateauMode::kMax;
  if (kwargs.is_second("threshold_mode", "rel", "abs")) {
    options.threshold_mode = ThresholdMode::kAbs;
  }
  options.factor = kwargs.number("factor", options.factor);
  options.patience = kwargs.count("patience").value_or(options.patience);
  options.threshold = kwargs.number("threshold", options.threshold);
  options.cooldown = kwargs.count("cooldown").value_or(options.cooldown);
  options.min_lr = kwargs.number("min_lr", options.min_lr);
  options.eps = kwargs.number("eps", options.eps);
  return options;
}

PolynomialDecayOptions polynomial_options(const std::string& text) {
  const Kwargs kwargs(text, {"lr_end", "power"});
  PolynomialDecayOptions options;
  options.lr_end = kwargs.number("lr_end", options.lr_end);
  options.power = kwargs.number("power", options.power);
  return options;
}

double num_cycles(const std::string& text, double standard) {
  return Kwargs(text, {"num_cycles"}).number("num_cycles", standard);
}

void expect_none(const std::string& text) { Kwargs(text, {}); }

}  // namespace

OptimizerPointer make_optimizer(const TrainingArguments& arguments,
                                const torch::nn::Module& model) {
  ParameterGroups groups(model);
  switch (arguments.optim) {
    case OptimizerName::kAdamW:
      return with_groups<AdamW>(std::move(groups), adam_options<AdamWOptions>(arguments));
    case OptimizerName::kAdam:
      return with_groups<Adam>(std::move(groups), adam_options<AdamOptions>(arguments));
    case OptimizerName::kSgd:
      return with_groups<SGD>(std::move(groups), plain_options<SgdOptions>(arguments));
    case OptimizerName::kAdagrad:
      return with_groups<Adagrad>(std::move(groups), plain_options<AdagradOptions>(arguments));
    case OptimizerName::kRmsprop:
      return with_groups<RMSprop>(std::move(groups), plain_options<RMSpropOptions>(arguments));
  }
  return nullptr;
}

std::int64_t warmup_steps_of(const TrainingArguments& arguments, std::int64_t training_steps) {
  const double given =
      arguments.warmup_steps > 0.0 ? arguments.warmup_steps : arguments.warmup_ratio.value_or(0.0);
  if (given >= 1.0) return static_cast<std::int64_t>(given);
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(training_steps) * given));
}

std::unique_ptr<LrScheduler> make_scheduler(const TrainingArguments& arguments,
                                            torch::optim::Optimizer& optimizer,
                                            std::int64_t training_steps) {
  const auto& kwargs = arguments.lr_scheduler_kwargs;
  const WarmupOptions steps = {.warmup_steps = warmup_steps_of(arguments, training_steps),
                               .training_steps = training_steps};
  switch (arguments.lr_scheduler_type) {
    case SchedulerType::kLinear:
      expect_none(kwargs);
      return linear_schedule_with_warmup(optimizer, steps);
    case SchedulerType::kCosine:
      return cosine_schedule_with_warmup(optimizer, steps, num_cycles(kwargs, 0.5));
    case SchedulerType::kCosineWithRestarts:
      return cosine_with_hard_restarts_schedule_with_warmup(optimizer, steps,
                                                            num_cycles(kwargs, 1.0));
    case SchedulerType::kPolynomial:
      return polynomial_decay_schedule_with_warmup(optimizer, steps, polynomial_options(kwargs));
    case SchedulerType::kConstant:
      expect_none(kwargs);
      return constant_schedule(optimizer);
    case SchedulerType::kConstantWithWarmup:
      expect_none(kwargs);
      return constant_schedule_with_warmup(optimizer, steps.warmup_steps);
    case SchedulerType::kInverseSqrt:
      return inverse_sqrt_schedule(optimizer, steps.warmup_steps,
                                   Kwargs(kwargs, {"timescale"}).count("timescale"));
    case SchedulerType::kReduceLrOnPlateau:
      return std::make_unique<ReduceLROnPlateau>(optimizer, plateau_options(kwargs));
  }
  return nullptr;
}

}  // namespace ladder
