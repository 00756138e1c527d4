// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ladder/accelerate/accelerator_options.h"
#include "ladder/comm/process_group_options.h"
#include "ladder/core/precision.h"
#include "ladder/data/batch_mode.h"
#include "ladder/train/recipe_options.h"
#include "ladder/train/run_record_options.h"
#include "ladder/trainer/training_arguments.h"

namespace ladder {

// The flags that a stage offers beside those that all stages have.
struct StageFlags {
  bool device_ids = false;   // --device-ids, --output-device: several devices in one process
  bool distributed = false;  // --backend, --timeout, --batch-mode, ...: several processes
  bool spawn = false;        // --nprocs, --master-port: processes that the program itself starts
  bool launcher = false;     // --init-method, --rank, --world-size: started by somebody else;
                             // with `spawn` too: by whoever did, else by itself
  bool amp = false;          // --precision, --sync-bn, --profile: mixed precision
  bool accelerator = false;  // --mixed-precision, --config-file, --loader-mode, --resume, ...
  bool trainer = false;      // --profile, --args-file and all of TrainingArguments, instead of the
                             // recipe's numbers: --num-train-epochs, --learning-rate, --optim, ...
};

// The command line of a stage, checked and complete. Flags of the same meaning have the same
// name in every stage; a stage adds only the flags of its own idea.
struct RunOptions {
  RecipeOptions recipe;          // --recipe, --epochs, --batch-size, --lr, --seed, --math, ...
  RunRecordOptions record;       // --metrics, --fingerprint, --quiet
  std::string data_root;         // --data-root: folder of the four data files
  std::int64_t limit_train = 0;  // --limit-train: only the first images; 0 = all
  std::int64_t limit_test = 0;   // --limit-test
  bool augment_shift = false;    // --augment shift: move each training image by up to 2 pixels
  int num_workers = 0;           // --num-workers: threads that prepare batches ahead
  bool pin_memory = false;       // --pin-memory: images in host memory, page-locked batches
  std::string device = "auto";   // --device: auto, cpu, cuda, cuda:N
  std::vector<std::string> gpu;  // --gpu 0,1: the GPUs this program may see; empty = all
  int threads = 0;               // --threads; 0 = choose
  std::string save;              // --save: file to write the weights to; empty = none
  std::string load;              // --load: file to start from; empty = fresh weights

  std::vector<std::string> device_ids;  // --device-ids: of the replicas; empty = choose
  std::string output_device;            // --output-device: of the loss; empty = the first

  ProcessGroupOptions process_group;          // --backend, --timeout, --init-method, ...
  BatchMode batch_mode = BatchMode::kGlobal;  // --batch-mode
  std::int64_t check_replicas = 0;            // --check-replicas: every how many steps; 0 = never
  int nprocs = 0;                             // --nprocs; 0 = as many as GPUs, else 2
  int master_port = 0;                        // --master-port; 0 = a free one
  bool launched = false;                      // a launcher has started the ranks: spawn no others

  std::optional<Precision> precision;  // --precision; none = that of the device
  bool sync_bn = true;                 // --sync-bn: one BatchNorm over all ranks

  AcceleratorOptions accelerator;        // --mixed-precision, --loader-mode, ...; complete
  std::int64_t checkpointing_steps = 0;  // --checkpointing-steps N: 0 = none
  bool checkpoint_epochs = false;        // --checkpointing-steps epoch
  bool resume = false;                   // --resume
  std::string resume_from;               // its path; empty = the last in --project-dir

  TrainingArguments training;      // complete; recipe, data and accelerator agree with them
  bool parity = false;             // --profile parity: the recipe's own optimizer
  std::vector<std::string> notes;  // for the log: what was named by an old name, or has no effect
};

// What the command line asks for: a run, or only a text (--help, --version).
struct CommandLine {
  std::optional<RunOptions> options;  // absent if only `text` is to be printed
  std::string text;
};

// Reads the command line. Throws UsageError for an unknown flag (naming the nearest one), a value
// of the wrong form or outside its range, and for an output file that could not be written.
// An underscore in a flag's name counts as a dash, so the tutorials' spellings work.
// Touches neither torch nor a GPU, so that a program may still fork afterwards.
CommandLine parse_command_line(int argc, const char* const* argv, const StageFlags& stage = {});

}  // namespace ladder
