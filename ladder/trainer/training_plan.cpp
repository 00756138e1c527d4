// SPDX-License-Identifier: Apache-2.0
#include "ladder/trainer/training_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "ladder/core/error.h"
#include "ladder/core/largest_counts.h"
#include "ladder/core/text.h"

namespace ladder {

std::vector<std::string> evaluation_banner(const std::string& description,
                                           std::int64_t num_examples, std::int64_t batch_size) {
  return {fmt::format("***** Running {} *****", description),
          fmt::format("  Num examples = {}", num_examples),
          fmt::format("  Batch size = {}", batch_size)};
}

TrainingPlan::TrainingPlan(const TrainingArguments& args, const TrainingSizes& training_sizes)
    : sizes(training_sizes), form(args.banner) {
  const auto configured = args.per_device_train_batch_size;
  const bool is_of_each = args.accelerator_config.mode() == LoaderMode::kPerProcess;
  updates = std::max<std::int64_t>(1, ceil_div(sizes.batches, sizes.accumulation_steps));
  batch_size = is_of_each ? configured : ceil_div(configured, sizes.num_processes);
  total_batch_size = configured * sizes.accumulation_steps * (is_of_each ? sizes.num_processes : 1);
  if (args.max_steps > 0 && !args.fast_dev_run) {
    max_steps = args.max_steps;
    num_train_epochs = ceil_div(max_steps, updates);
    num_train_samples = static_cast<double>(max_steps) * static_cast<double>(total_batch_size);
    return;
  }
  const double epochs = args.fast_dev_run ? 1.0 : args.num_train_epochs;
  const double steps = std::ceil(epochs * static_cast<double>(updates));
  if (steps > static_cast<double>(kMaxOptimizerSteps)) {
    throw UsageError::out_of_range(
        "num_train_epochs", epochs,
        fmt::format("at most {}, as an epoch has {} steps", kMaxOptimizerSteps / updates, updates),
        "max_steps ends a training after a number of steps");
  }
  max_steps = static_cast<std::int64_t>(steps);
  num_train_epochs = static_cast<std::int64_t>(std::ceil(epochs));
  num_train_samples = static_cast<double>(sizes.num_examples) * epochs;
}

std::vector<std::string> TrainingPlan::banner() const {
  const bool is_v5 = form == Banner::kV5;
  std::vector<std::string> lines = {"***** Running training *****"};
  const auto add = [&](std::string_view name, std::int64_t number) {
    const auto text = is_v5 ? grouped_digits(number) : std::to_string(number);
    lines.push_back(fmt::format("  {} = {}", name, text));
  };
  add("Num examples", sizes.num_examples);
  add("Num Epochs", num_train_epochs);
  if (is_v5) add("Num update steps per epoch", updates);
  add("Instantaneous batch size per device", batch_size);
  add("Total train batch size (w. parallel, distributed & accumulation)", total_batch_size);
  lines.push_back(fmt::format("  Gradient Accumulation steps = {}", sizes.accumulation_steps));
  add("Total optimization steps", max_steps);
  if (is_v5) add("Number of trainable parameters", sizes.num_parameters);
  return lines;
}

std::vector<std::string> TrainingPlan::resume_lines(std::int64_t global_step,
                                                    bool ignores_data_skip) const {
  const auto epochs = global_step / updates;
  const auto batches = global_step % updates * sizes.accumulation_steps;
  std::vector<std::string> lines;
  if (form == Banner::kV5) {
    lines.push_back(
        fmt::format("  Resuming training from checkpoint with epoch {} and global step {}", epochs,
                    global_step));
  } else {
    lines.emplace_back("  Continuing training from checkpoint, will skip to saved global_step");
    lines.push_back(fmt::format("  Continuing training from epoch {}", epochs));
    lines.push_back(fmt::format("  Continuing training from global step {}", global_step));
  }
  if (ignores_data_skip) return lines;
  lines.push_back(
      form == Banner::kV5
          ? fmt::format("  Fast-forwarding the dataloader past {} epochs and {} batches to resume "
                        "from the exact training state.",
                        epochs, batches)
          : fmt::format("  Will skip the first {} epochs then the first {} batches in the first "
                        "epoch.",
                        epochs, batches));
  return lines;
}

}  // namespace ladder
