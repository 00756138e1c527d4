// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mnist/accelerated_options.h"
#include "mnist/command_line_parts.h"
#include "mnist/flags.h"

namespace mnist {

// For accelerated_command_line.cpp alone: the command line of a stage that trains by a Trainer.
//
// Each row of the table of training arguments is a flag, --learning-rate for learning_rate. Where
// other stages have a flag of the same meaning, its name is an alias: --lr. Precedence, highest
// first: the command line, --args-file, --profile, the defaults of transformers.

void add_trainer_flags(Flags& flags, TrainerRunOptions& options, CommandTexts& texts);

// After the command line: the file, then the profile. Throws UsageError.
void apply_trainer_presets(Flags& flags, TrainerRunOptions& options, CommandTexts& texts);

// Names the recipe where it decides, for the record: with --profile parity, the optimizer's
// options.
void name_recipe(TrainerRunOptions& options);

// What is saved of the settings, after the ranks have compared them all: not the training
// arguments, which the Trainer saves itself, but the initial weights, which tell another run in
// output_dir.
void complete_settings(RunSettings& settings);

}  // namespace mnist
