// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "ladder/accelerate/accelerator_options.h"
#include "ladder/trainer/training_arguments.h"
#include "mnist/options.h"

namespace mnist {

// The options of the stages that train by an Accelerator or a Trainer.

// Stage 5.
struct AcceleratedOptions : GroupOptions, ProcessOptions, SumOptions {
  ladder::AcceleratorOptions accelerator;  // --mixed-precision, --loader-mode, ...; complete
  std::int64_t checkpointing_steps = 0;    // --checkpointing-steps N: 0 = none
  bool checkpoint_epochs = false;          // --checkpointing-steps epoch
  bool resume = false;                     // --resume
  std::string resume_from;                 // its path; empty = the last in --project-dir;
                                           // auto = the newest whole one there, if any
};

// Stage 6. Recipe, data and accelerator agree with the training arguments.
struct TrainerRunOptions : GroupOptions, ProcessOptions {
  ladder::AcceleratorOptions accelerator;
  ladder::TrainingArguments training;  // --num-train-epochs, --learning-rate, ...; resolved
  bool parity = false;                 // --profile parity: the recipe's own optimizer
};

inline bool in_micro_batches(const TrainerRunOptions& options) {
  return options.training.replicate_options().in_micro_batches();
}

}  // namespace mnist
