// SPDX-License-Identifier: Apache-2.0
#include "ladder/trainer/training_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "ladder/core/environment.h"
#include "ladder/core/error.h"
#include "ladder/trainer/argument_file.h"
#include "ladder/trainer/argument_table.h"

namespace ladder {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kMost = 1e9;  // epochs or steps
constexpr std::int64_t kLongestTimeout = 604'800;

// The range of a number: "a number >= 0 and below 1".
struct Range {
  double least = 0.0;
  double most = kInfinity;
  bool below = false;  // `most` itself is outside

  bool holds(double number) const {
    return std::isfinite(number) && number >= least && (below ? number < most : number <= most);
  }
  std::string text() const {
    if (most == kInfinity) return fmt::format("a number >= {}", least);
    return below ? fmt::format("a number >= {} and below {}", least, most)
                 : fmt::format("a number from {} to {}", least, most);
  }
};

template <typename Number>
void require(const char* name, Number number, const Range& range, const char* hint = "") {
  if (range.holds(static_cast<double>(number))) return;
  throw UsageError::out_of_range(name, number, range.text(), hint);
}

void check_numbers(const TrainingArguments& arguments) {
  const Range one_or_more{.least = 1.0};
  const Range below_one{.most = 1.0, .below = true};
  require("num_train_epochs", arguments.num_train_epochs, {.most = kMost});
  require("per_device_train_batch_size", arguments.per_device_train_batch_size, one_or_more);
  require("per_device_eval_batch_size", arguments.per_device_eval_batch_size, one_or_more);
  require("gradient_accumulation_steps", arguments.gradient_accumulation_steps, one_or_more);
  require("learning_rate", arguments.learning_rate, {});
  require("weight_decay", arguments.weight_decay, {});
  require("adam_beta1", arguments.adam_beta1, below_one);
  require("adam_beta2", arguments.adam_beta2, below_one);
  require("adam_epsilon", arguments.adam_epsilon, {});
  require("max_grad_norm", arguments.max_grad_norm, {});
  require("label_smoothing_factor", arguments.label_smoothing_factor, {.most = 1.0});
  require("warmup_steps", arguments.warmup_steps, {.most = kMost});
  require("warmup_ratio", arguments.warmup_ratio.value_or(0.0), below_one);
  require("eval_delay", arguments.eval_delay, {.most = kMost});
  require("save_total_limit", arguments.save_total_limit.value_or(1), one_or_more,
          "leave it out to keep all");
  require("dataloader_num_workers", arguments.dataloader_num_workers, {});
  require("ddp_bucket_cap_mb", arguments.ddp_bucket_cap_mb.value_or(1), one_or_more);
  require("ddp_timeout", arguments.ddp_timeout, {.least = 1.0, .most = kLongestTimeout});
  if (arguments.max_steps == 0 || arguments.max_steps < -1) {
    throw UsageError::out_of_range("max_steps", arguments.max_steps, "a number >= 1, or -1",
                                   "-1 leaves it to num_train_epochs");
  }
}

// A number of steps from 1 on is whole; below, it is a part of all steps.
void require_steps(const char* name, double steps) {
  if (steps > 0.0 && steps <= kMost && (steps < 1.0 || steps == std::floor(steps))) return;
  throw UsageError::out_of_range(name, steps, "a whole number >= 1, or a part above 0 and below 1");
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
  const double part = arguments.limit_train_batches;
  const bool fits = part > 0.0 && part <= kMost && (part <= 1.0 || part == std::floor(part));
  if (!fits) {
    throw UsageError::out_of_range("limit_train_batches", part,
                                   "a whole number above 1, or a part above 0 and up to 1");
  }
}

// Do checkpoints fall on steps that have been evaluated? The parts in millionths, since 0.3 is no
// multiple of 0.1 in binary.
void check_saved_steps(double save, double eval) {
  constexpr double kMillion = 1e6;
  if ((save < 1.0) != (eval < 1.0)) {
    throw UsageError::conflict(
        "load_best_model_at_end",
        fmt::format("save_steps {} and eval_steps {}: one is a part of all steps", save, eval),
        "make both a number of steps, or both a part");
  }
  const double scale = save < 1.0 ? kMillion : 1.0;
  if (std::fmod(save, eval) == 0.0 || std::fmod(save * scale, eval * scale) == 0.0) return;
  throw UsageError::out_of_range("save_steps", save, fmt::format("a multiple of {}", eval),
                                 "load_best_model_at_end loads a checkpoint that was evaluated");
}

bool match(IntervalStrategy eval, SaveStrategy save) {
  return static_cast<int>(eval) == static_cast<int>(save);
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
                               "no model is the best without evaluation",
                               "set eval_strategy to epoch or steps");
  }
  if (!arguments.load_best_model_at_end || best) return;
  if (!match(arguments.eval_strategy, arguments.save_strategy)) {
    throw UsageError::conflict("load_best_model_at_end",
                               "eval_strategy and save_strategy differ, so what is the best may "
                               "not have been saved",
                               "give both the same, or save_strategy best");
  }
  if (arguments.eval_strategy == IntervalStrategy::kSteps) {
    check_saved_steps(arguments.save_steps, arguments.eval_steps.value_or(1.0));
  }
}

void check_together(const TrainingArguments& arguments) {
  if (arguments.fp16 && arguments.bf16) {
    throw UsageError::conflict("fp16", "bf16 is set too", "set one of them");
  }
  if (arguments.label_names.empty()) {
    throw UsageError::missing("label_names", "the name of an input", "the default is labels");
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
    throw UsageError::conflict("lr_scheduler_type",
                               "reduce_lr_on_plateau follows an evaluation, and there is none",
                               "set eval_strategy to epoch or steps");
  }
  check_best_model(arguments);
}

// A struct that code has filled has not gone through the table.
void check_texts(const TrainingArguments& arguments) {
  TrainingArguments copy;
  for (const auto& row : training_argument_table()) {
    const bool is_text = row.name == "ddp_backend" || row.name == "report_to" ||
                         row.name == "label_names" || row.name == "lr_scheduler_kwargs";
    if (is_text) row.read(copy, std::string(row.name), row.write(arguments));
  }
}

void resolve_warmup(TrainingArguments& arguments, std::vector<std::string>& notes) {
  if (!arguments.warmup_ratio) return;
  if (arguments.warmup_steps > 0.0) {
    notes.emplace_back("warmup_ratio: without effect beside warmup_steps");
  } else {
    arguments.warmup_steps = *arguments.warmup_ratio;
    notes.push_back(
        fmt::format("warmup_ratio: old name, taken as warmup_steps={}", *arguments.warmup_ratio));
  }
  arguments.warmup_ratio.reset();
}

void resolve_evaluation(TrainingArguments& arguments, std::vector<std::string>& notes) {
  if (arguments.eval_strategy == IntervalStrategy::kNo) return;
  arguments.do_eval = true;
  const bool unset = arguments.eval_steps.value_or(0.0) == 0.0;
  if (arguments.eval_strategy != IntervalStrategy::kSteps || !unset) return;
  require_steps("logging_steps", arguments.logging_steps);
  arguments.eval_steps = arguments.logging_steps;
  notes.push_back(
      fmt::format("eval_steps: unset, taken from logging_steps: {}", arguments.logging_steps));
}

void resolve_metric(TrainingArguments& arguments) {
  const bool needed = arguments.load_best_model_at_end ||
                      arguments.lr_scheduler_type == SchedulerType::kReduceLrOnPlateau;
  auto& metric = arguments.metric_for_best_model;
  if (metric.empty() && needed) metric = "loss";
  if (metric.empty() || arguments.greater_is_better) return;
  arguments.greater_is_better = !metric.ends_with("loss");
}

void resolve_report_to(TrainingArguments& arguments) {
  auto& names = arguments.report_to;
  if (names == std::vector<std::string>{"none"}) names.clear();
  if (std::find(names.begin(), names.end(), "all") == names.end()) return;
  names = {"jsonl", "csv", "tensorboard"};
}

void resolve_output_dir(TrainingArguments& arguments) {
  auto& folder = arguments.output_dir;
  const auto home = environment_variable("HOME");
  if (home && (folder == "~" || folder.starts_with("~/"))) folder.replace(0, 1, *home);
}

}  // namespace

LoaderMode AcceleratorConfig::mode() const {
  if (!split_batches) return LoaderMode::kPerProcess;
  return even_batches ? LoaderMode::kSplitBatches : LoaderMode::kGlobal;
}

std::vector<std::string> resolve(TrainingArguments& arguments) {
  std::vector<std::string> notes;
  check_numbers(arguments);
  check_texts(arguments);
  resolve_warmup(arguments, notes);
  resolve_evaluation(arguments, notes);
  resolve_metric(arguments);
  resolve_report_to(arguments);
  resolve_output_dir(arguments);
  if (arguments.use_cpu) arguments.dataloader_pin_memory = false;
  check_steps(arguments);
  check_together(arguments);
  return notes;
}

nlohmann::ordered_json to_json(const TrainingArguments& arguments) {
  auto json = nlohmann::ordered_json::object();
  for (const auto& row : training_argument_table()) json[row.name] = row.write(arguments);
  return json;
}

TrainingArguments training_arguments_from(const nlohmann::json& json, std::string_view origin,
                                          std::vector<std::string>* notes) {
  std::vector<std::string> said;
  TrainingArguments arguments;
  for (const auto& entry : parse_arguments(json, origin, said)) {
    assign(entry, arguments, said);
  }
  if (notes != nullptr) notes->insert(notes->end(), said.begin(), said.end());
  return arguments;
}

TrainingArguments read_training_arguments(const std::string& path,
                                          std::vector<std::string>* notes) {
  std::vector<std::string> said;
  TrainingArguments arguments;
  for (const auto& entry : read_argument_file(path, said)) assign(entry, arguments, said);
  if (notes != nullptr) notes->insert(notes->end(), said.begin(), said.end());
  return arguments;
}

}  // namespace ladder
