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

constexpr double kMost = kMostEpochs;  // epochs or steps

std::string hint_for(const TrainingArgument& row) {
  const auto standard = row.write({});
  if (standard.is_null()) return fmt::format("leave it unset for the default: {}", row.help);
  return fmt::format("the default is {}", standard.dump());
}

void check_ranges(const TrainingArguments& arguments) {
  for (const auto& row : training_argument_table()) {
    const auto [least, most, below] = row.range;
    const auto written = row.write(arguments);
    if (!std::isfinite(least) || written.is_null()) continue;
    const auto value = written.get<double>();
    if (std::isfinite(value) && value >= least && (below ? value < most : value <= most)) continue;
    const auto text = !std::isfinite(most) ? fmt::format("a number >= {}", least)
                      : below              ? fmt::format("a number >= {} and below {}", least, most)
                                           : fmt::format("a number from {} to {}", least, most);
    throw UsageError::out_of_range(row.name, value, text, hint_for(row));
  }
  const auto steps = arguments.max_steps;
  if (steps != -1 && (steps < 1 || static_cast<double>(steps) > kMost)) {
    throw UsageError::out_of_range("max_steps", steps, fmt::format("1 to {}, or -1", kMost),
                                   "with -1, num_train_epochs decides");
  }
}

// A number of steps from 1 on is whole; below 1 it is a fraction of all steps.
void require_steps(const char* name, double steps) {
  if (steps > 0.0 && steps <= kMost && (steps < 1.0 || steps == std::floor(steps))) return;
  throw UsageError::out_of_range(
      name, steps,
      fmt::format("a whole number from 1 to {}, or a fraction above 0 and below 1", kMost),
      "such as 500, or 0.1 for ten times in the training");
}

void check_steps(const TrainingArguments& arguments) {
  if (arguments.logging_strategy == IntervalStrategy::kSteps) {
    require_steps("logging_steps", arguments.logging_steps);
  }
  if (arguments.eval_strategy == IntervalStrategy::kSteps) {
    require_steps("eval_steps", arguments.eval_steps.value_or(1.0));
  }
  if (arguments.save_strategy == SaveStrategy::kSteps) {
    require_steps("save_steps", arguments.save_steps);
  }
  const double limit = arguments.limit_train_batches;
  if (limit > 0.0 && limit <= kMost && (limit <= 1.0 || limit == std::floor(limit))) return;
  throw UsageError::out_of_range("limit_train_batches", limit,
                                 "a whole number above 1, or a fraction above 0 and up to 1",
                                 hint_for(*find_argument("limit_train_batches")));
}

// Each checkpoint must be of an evaluated step. Fractions are compared in millionths, because 0.3
// is no multiple of 0.1 in binary.
void check_saved_steps(double save, double eval) {
  constexpr double kMillion = 1e6;
  if ((save < 1.0) != (eval < 1.0)) {
    throw UsageError::conflict(
        "load_best_model_at_end",
        fmt::format("save_steps {} and eval_steps {}: one is a fraction of all steps", save, eval),
        "make both a number of steps, or both a fraction");
  }
  const double scale = save < 1.0 ? kMillion : 1.0;
  if (std::fmod(save, eval) == 0.0 || std::fmod(save * scale, eval * scale) == 0.0) return;
  throw UsageError::out_of_range("save_steps", save, fmt::format("a multiple of {}", eval),
                                 "load_best_model_at_end loads a checkpoint that was evaluated");
}

void check_best_model(const TrainingArguments& arguments) {
  const bool best = arguments.save_strategy == SaveStrategy::kBest;
  const bool evaluates = arguments.eval_strategy != IntervalStrategy::kNo;
  if (best && arguments.metric_for_best_model.empty()) {
    throw UsageError::missing("save_strategy", "metric_for_best_model beside best",
                              "such as: metric_for_best_model=accuracy");
  }
  if ((best || arguments.load_best_model_at_end) && !evaluates) {
    throw UsageError::conflict(best ? "save_strategy" : "load_best_model_at_end",
                               "there is no best model without evaluation",
                               "set eval_strategy to epoch or steps");
  }
  if (!arguments.load_best_model_at_end || best) return;
  if (static_cast<int>(arguments.eval_strategy) != static_cast<int>(arguments.save_strategy)) {
    throw UsageError::conflict("load_best_model_at_end",
                               "eval_strategy and save_strategy differ, so the best model may not "
                               "have been saved",
                               "make both the same, or save_strategy best");
  }
  if (arguments.eval_strategy == IntervalStrategy::kSteps) {
    check_saved_steps(arguments.save_steps, arguments.eval_steps.value_or(1.0));
  }
}

void check_together(const TrainingArguments& arguments) {
  if (arguments.fp16 && arguments.bf16) {
    throw UsageError::conflict("fp16", "bf16 is set too", "set one of them");
  }
  const bool saves = arguments.save_strategy != SaveStrategy::kNo && !arguments.fast_dev_run;
  if (arguments.output_dir.empty() && saves) {
    throw UsageError::missing("output_dir", "a folder for the checkpoints",
                              "name one, or set save_strategy to no");
  }
  if (arguments.output_dir.empty() && !arguments.report_to.empty()) {
    throw UsageError::missing("output_dir", "a folder for report_to to write to", "name one");
  }
  const bool plateau = arguments.lr_scheduler_type == SchedulerType::kReduceLrOnPlateau;
  if (plateau && arguments.eval_strategy == IntervalStrategy::kNo) {
    throw UsageError::conflict("lr_scheduler_type", "reduce_lr_on_plateau needs evaluations",
                               "set eval_strategy to epoch or steps");
  }
  if (arguments.sums == Sums::kExact &&
      arguments.accelerator_config.mode() != LoaderMode::kGlobal) {
    throw UsageError::conflict(
        "sums exact", "the batches of this accelerator_config depend on the number of processes",
        "set accelerator_config to {\"split_batches\": true, \"even_batches\": false}");
  }
  const auto unchanged = TrainingArguments{}.micro_batch;
  if (arguments.sums == Sums::kFast && arguments.micro_batch != unchanged) {
    throw UsageError::conflict("micro_batch", "sums in float have no micro-batches",
                               "set sums to exact");
  }
  check_best_model(arguments);
}

// Code fills the struct without the table, which checks names and JSON.
void check_texts(const TrainingArguments& arguments) {
  TrainingArguments copy;
  for (const auto& row : training_argument_table()) {
    row.read(copy, std::string(row.name), row.write(arguments));
  }
}

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
  check_ranges(arguments);
  check_texts(arguments);
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
    require_steps("logging_steps", arguments.logging_steps);
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
  require_path("output_dir", folder);
  if (home && (folder == "~" || folder.starts_with("~/"))) folder.replace(0, 1, *home);
  if (arguments.use_cpu) arguments.dataloader_pin_memory = false;
  check_steps(arguments);
  check_together(arguments);
  return warnings;
}

nlohmann::ordered_json to_json(const TrainingArguments& arguments) {
  auto json = nlohmann::ordered_json::object();
  for (const auto& row : training_argument_table()) json[row.name] = row.write(arguments);
  return json;
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
