// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ladder/trainer/training_arguments.h"

namespace ladder {

// The sizes that determine the length of a training, besides its arguments.
struct TrainingSizes {
  std::int64_t num_examples = 0;  // of the training set
  std::int64_t batches = 0;       // per epoch, on each process
  int accumulation_steps = 1;     // batches per optimizer step
  int num_processes = 1;
  std::int64_t num_parameters = 0;  // trainable
};

// "***** Running Evaluation *****" and its sizes. `description`: Evaluation or Prediction.
std::vector<std::string> evaluation_banner(const std::string& description,
                                           std::int64_t num_examples, std::int64_t batch_size);

// The length of a training, and its banner. Python's counterpart:
// Trainer.set_initial_training_values.
struct TrainingPlan {
  TrainingPlan() = default;
  // Throws UsageError for more than kMaxOptimizerSteps steps.
  TrainingPlan(const TrainingArguments& args, const TrainingSizes& training_sizes);

  TrainingSizes sizes;
  Banner form = Banner::kTutorial;
  std::int64_t updates = 0;  // optimizer steps per epoch
  std::int64_t max_steps = 0;
  std::int64_t num_train_epochs = 0;
  double num_train_samples = 0.0;
  std::int64_t batch_size = 0;        // samples per batch on each process
  std::int64_t total_batch_size = 0;  // samples per optimizer step

  // "***** Running training *****" and the sizes.
  std::vector<std::string> banner() const;
  // The further lines of a training that resumes after `global_step` steps.
  std::vector<std::string> resume_lines(std::int64_t global_step, bool ignores_data_skip) const;
};

}  // namespace ladder
