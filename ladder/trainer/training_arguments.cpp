// SPDX-License-Identifier: Apache-2.0
#include "ladder/trainer/training_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "ladder/core/environment.h"
#include "ladder/core/error.h"
#include "ladder/core/largest_counts.h"
#include "ladder/core/text.h"
#include "ladder/trainer/argument_file.h"
#include "ladder/trainer/argument_table.h"

namespace ladder {
namespace {

using T = TrainingArguments;

// A number of steps from 1 on is whole; below 1 it is a fraction of all steps.
bool are_steps(double steps) {
  return steps > 0.0 && steps <= kMaxEpochs && (steps < 1.0 || steps == std::floor(steps));
}

bool evaluates_by_steps(const T& args) { return args.eval_strategy == IntervalStrategy::kSteps; }
bool evaluates(const T& args) { return args.eval_strategy != IntervalStrategy::kNo; }
bool saves_best(const T& args) { return args.save_strategy == SaveStrategy::kBest; }

// Whether load_best_model_at_end must find each checkpoint evaluated.
bool compares_steps(const T& args) {
  return args.load_best_model_at_end && !saves_best(args) && evaluates_by_steps(args);
}

// Fractions are compared in millionths, because 0.3 is no multiple of 0.1 in binary.
bool is_multiple(double save, double eval) {
  const double scale = save < 1.0 ? 1e6 : 1.0;
  return std::fmod(save, eval) == 0.0 || std::fmod(save * scale, eval * scale) == 0.0;
}

static_assert(kMaxEpochs == 1'000'000'000);  // in the texts below
constexpr const char* kNotSteps =
    "expected a whole number from 1 to 1000000000, or a fraction above 0 and below 1, got {}";
constexpr const char* kSuchSteps = "such as 500, or 0.1 for ten times in the training";
constexpr const char* kNoBest = "there is no best model without evaluation";
constexpr const char* kEvaluate = "set eval_strategy to epoch or steps";

constexpr Rule<T> kRules[] = {
    {"max_steps",
     [](const T& a) { return a.max_steps != -1 && (a.max_steps < 1 || a.max_steps > kMaxEpochs); },
     "expected 1 to 1000000000, or -1, got {}", "with -1, num_train_epochs decides"},
    {"logging_steps",
     [](const T& a) {
       return (a.logging_strategy == IntervalStrategy::kSteps ||
               (evaluates_by_steps(a) && a.eval_steps == a.logging_steps)) &&
              !are_steps(a.logging_steps);
     },
     kNotSteps, kSuchSteps},
    {"eval_steps",
     [](const T& a) { return evaluates_by_steps(a) && !are_steps(a.eval_steps.value_or(1.0)); },
     kNotSteps, kSuchSteps},
    {"save_steps",
     [](const T& a) { return a.save_strategy == SaveStrategy::kSteps && !are_steps(a.save_steps); },
     kNotSteps, kSuchSteps},
    {"limit_train_batches",
     [](const T& a) { return a.limit_train_batches != 1.0 && !are_steps(a.limit_train_batches); },
     "expected a whole number above 1, or a fraction above 0 and up to 1, got {}",
     "the default is 1.0"},
    {"fp16", [](const T& a) { return a.fp16 && a.bf16; }, "bf16 is set too", "set one of them"},
    {"output_dir",
     [](const T& a) {
       return a.output_dir.empty() && a.save_strategy != SaveStrategy::kNo && !a.fast_dev_run;
     },
     "expected a folder for the checkpoints, not set", "name one, or set save_strategy to no"},
    {"output_dir", [](const T& a) { return a.output_dir.empty() && !a.report_to.empty(); },
     "expected a folder for report_to to write to, not set", "name one"},
    {"lr_scheduler_type",
     [](const T& a) {
       return a.lr_scheduler_type == SchedulerType::kReduceLrOnPlateau && !evaluates(a);
     },
     "reduce_lr_on_plateau needs evaluations", kEvaluate},
    {"sums",
     [](const T& a) {
       return a.replicate_options().in_micro_batches() &&
              a.accelerator_config.mode() != LoaderMode::kGlobal;
     },
     "{}, and the batches of this accelerator_config depend on the number of processes",
     "set accelerator_config to {\"split_batches\": true, \"even_batches\": false}"},
    {"micro_batch",
     [](const T& a) {
       return !a.replicate_options().in_micro_batches() && a.micro_batch != T{}.micro_batch;
     },
     "sums in float have no micro-batches", "set sums to exact"},
    {"save_strategy", [](const T& a) { return saves_best(a) && a.metric_for_best_model.empty(); },
     "expected metric_for_best_model beside best, not set",
     "such as: metric_for_best_model=accuracy"},
    {"save_strategy", [](const T& a) { return saves_best(a) && !evaluates(a); }, kNoBest,
     kEvaluate},
    {"load_best_model_at_end", [](const T& a) { return a.load_best_model_at_end && !evaluates(a); },
     kNoBest, kEvaluate},
    {"load_best_model_at_end",
     [](const T& a) {
       return a.load_best_model_at_end && !saves_best(a) &&
              static_cast<int>(a.eval_strategy) != static_cast<int>(a.save_strategy);
     },
     "eval_strategy and save_strategy differ, so the best model may not have been saved",
     "make both the same, or save_strategy best"},
    {"load_best_model_at_end",
     [](const T& a) {
       return compares_steps(a) && (a.save_steps < 1.0) != (a.eval_steps.value_or(1.0) < 1.0);
     },
     "save_steps {save_steps} and eval_steps {eval_steps}: one is a fraction of all steps",
     "make both a number of steps, or both a fraction"},
    {"save_steps",
     [](const T& a) {
       return compares_steps(a) && !is_multiple(a.save_steps, a.eval_steps.value_or(1.0));
     },
     "expected a multiple of {eval_steps}, got {}",
     "load_best_model_at_end loads a checkpoint that was evaluated"},
};

template <typename Read>
TrainingArguments assigned(std::string_view origin, const Read& read,
                           std::vector<std::string>* warnings) {
  std::vector<std::string> unused;
  auto& target = warnings != nullptr ? *warnings : unused;
  TrainingArguments arguments;
  assign(read(target), origin, arguments, target);
  return arguments;
}

}  // namespace

LoaderMode AcceleratorConfig::mode() const {
  if (!split_batches) return LoaderMode::kPerProcess;
  return even_batches ? LoaderMode::kSplitBatches : LoaderMode::kGlobal;
}

std::vector<std::string> resolve(TrainingArguments& arguments) {
  std::vector<std::string> warnings;
  require_values<T>(training_argument_table(), arguments);
  if (arguments.warmup_ratio && arguments.warmup_steps > 0.0) {
    warnings.emplace_back("warmup_ratio: without effect beside warmup_steps");
  } else if (arguments.warmup_ratio) {
    arguments.warmup_steps = *arguments.warmup_ratio;
    warnings.push_back(
        fmt::format("warmup_ratio: deprecated, used as warmup_steps={}", *arguments.warmup_ratio));
  }
  arguments.warmup_ratio.reset();

  if (arguments.eval_strategy != IntervalStrategy::kNo) arguments.do_eval = true;
  if (arguments.eval_strategy == IntervalStrategy::kSteps &&
      arguments.eval_steps.value_or(0.0) == 0.0) {
    arguments.eval_steps = arguments.logging_steps;
    warnings.push_back(
        fmt::format("eval_steps: not set, logging_steps used: {}", arguments.logging_steps));
  }

  auto& metric = arguments.metric_for_best_model;
  const bool plateau = arguments.lr_scheduler_type == SchedulerType::kReduceLrOnPlateau;
  if (metric.empty() && (arguments.load_best_model_at_end || plateau)) metric = "loss";
  if (!metric.empty() && !arguments.greater_is_better) {
    arguments.greater_is_better = !metric.ends_with("loss");
  }

  auto& trackers = arguments.report_to;
  if (trackers == std::vector<std::string>{"none"}) trackers.clear();
  if (std::find(trackers.begin(), trackers.end(), "all") != trackers.end()) {
    trackers = {"jsonl", "csv", "tensorboard"};
  }
  auto& folder = arguments.output_dir;
  const auto home = environment_variable("HOME");
  if (home && (folder == "~" || folder.starts_with("~/"))) folder.replace(0, 1, *home);
  if (arguments.use_cpu) arguments.dataloader_pin_memory = false;
  require_rules(kRules, arguments, to_json(arguments));
  return warnings;
}

nlohmann::ordered_json to_json(const TrainingArguments& arguments) {
  return to_json(training_argument_table(), arguments);
}

TrainingArguments training_arguments_from(const nlohmann::json& json, std::string_view origin,
                                          std::vector<std::string>* warnings) {
  return assigned(
      origin, [&](auto& target) { return parse_arguments(json, origin, target); }, warnings);
}

TrainingArguments read_training_arguments(const std::string& path,
                                          std::vector<std::string>* warnings) {
  return assigned(path, [&](auto& target) { return read_argument_file(path, target); }, warnings);
}

}  // namespace ladder
