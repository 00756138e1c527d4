// SPDX-License-Identifier: Apache-2.0
#include "ladder/trainer/training_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "ladder/core/numbers.h"

namespace ladder {

std::vector<std::string> evaluation_banner(const std::string& description,
                                           std::int64_t num_examples, std::int64_t batch_size) {
  return {fmt::format("***** Running {} *****", description),
          fmt::format("  Num examples = {}", num_examples),
          fmt::format("  Batch size = {}", batch_size)};
}

TrainingPlan::TrainingPlan(const TrainingArguments& args, const TrainingSizes& training_setup)
    : setup(training_setup), form(args.banner) {
  const auto configured = args.per_device_train_batch_size;
  const bool is_of_each = args.accelerator_config.mode() == LoaderMode::kPerProcess;
  updates = std::max<std::int64_t>(1, ceil_div(setup.batches, setup.accumulation_steps));
  batch_size = is_of_each ? configured : ceil_div(configured, setup.num_processes);
  total_batch_size = configured * setup.accumulation_steps * (is_of_each ? setup.num_processes : 1);
  if (args.max_steps > 0 && !args.fast_dev_run) {
    max_steps = args.max_steps;
    num_train_epochs = ceil_div(max_steps, updates);
    num_train_samples = static_cast<double>(max_steps * total_batch_size);
    return;
  }
  const double epochs = args.fast_dev_run ? 1.0 : args.num_train_epochs;
  max_steps = static_cast<std::int64_t>(std::ceil(epochs * static_cast<double>(updates)));
  num_train_epochs = static_cast<std::int64_t>(std::ceil(epochs));
  num_train_samples = static_cast<double>(setup.num_examples) * epochs;
}

std::vector<std::string> TrainingPlan::banner() const {
  const bool is_v5 = form == Banner::kV5;
  const auto text = [&](std::int64_t number) {
    return is_v5 ? grouped_digits(number) : fmt::format("{}", number);
  };
  std::vector<std::string> lines = {"***** Running training *****"};
  lines.push_back(fmt::format("  Num examples = {}", text(setup.num_examples)));
  lines.push_back(fmt::format("  Num Epochs = {}", text(num_train_epochs)));
  if (is_v5) lines.push_back(fmt::format("  Num update steps per epoch = {}", text(updates)));
  lines.push_back(fmt::format("  Instantaneous batch size per device = {}", text(batch_size)));
  lines.push_back(
      fmt::format("  Total train batch size (w. parallel, distributed & accumulation) = {}",
                  text(total_batch_size)));
  lines.push_back(fmt::format("  Gradient Accumulation steps = {}", setup.accumulation_steps));
  lines.push_back(fmt::format("  Total optimization steps = {}", text(max_steps)));
  if (is_v5) {
    lines.push_back(
        fmt::format("  Number of trainable parameters = {}", text(setup.num_parameters)));
  }
  return lines;
}

std::vector<std::string> TrainingPlan::resume_lines(std::int64_t global_step,
                                                    bool ignores_data_skip) const {
  const auto epochs = global_step / updates;
  const auto batches = global_step % updates * setup.accumulation_steps;
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
