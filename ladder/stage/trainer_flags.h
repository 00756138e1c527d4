// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "ladder/stage/flags.h"
#include "ladder/stage/run_options.h"

namespace ladder {

// For run_options.cpp alone: the command line of a stage that trains by a Trainer.
//
// Each row of the table of training arguments is a flag, --learning-rate for learning_rate. Where
// other stages have a flag of the same meaning, its name is an alias: --lr. Who says what counts,
// the first that does: the command line, --args-file, --profile, the defaults of transformers.

struct TrainerTexts {
  std::string args_file;           // --args-file: JSON or YAML; empty = none
  std::string profile = "parity";  // --profile: parity, hf-defaults, none
};

void add_trainer_flags(Flags& flags, RunOptions& options, TrainerTexts& texts);

// After the command line: the file, then the profile. Throws UsageError.
void apply_trainer_presets(Flags& flags, RunOptions& options, const TrainerTexts& texts);

// After all flags: resolves the arguments, and hands recipe, data and accelerator their part.
void complete_trainer(RunOptions& options);

}  // namespace ladder
