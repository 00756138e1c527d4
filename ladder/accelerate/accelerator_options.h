// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ladder/comm/process_group_options.h"
#include "ladder/core/precision.h"
#include "ladder/io/option_table.h"
#include "ladder/parallel/fully_sharded_options.h"
#include "ladder/parallel/replicate_options.h"

namespace ladder {

// How a prepared loader divides its batches over the processes.
enum class LoaderMode {
  kGlobal,      // the loader's batch size is the global one: the processes divide each batch, of
                // any size. Same steps and same samples for any number of processes; no sample is
                // repeated
  kPerProcess,  // Accelerate's default: whole batches are dealt to the processes. The global batch
                // grows with the number of processes, and an epoch has fewer steps
  kSplitBatches,  // Accelerate's split_batches: as kGlobal, but the batch size must be a multiple
                  // of the number of processes, and a short last batch is padded
};

struct DataLoaderConfiguration {
  LoaderMode mode = LoaderMode::kGlobal;
  // Not in kGlobal: pad the last round with the first samples, so that all processes get equally
  // many; gather_for_metrics removes them. false: the last batch of some processes is short or
  // empty.
  bool even_batches = true;
  // Only the main process reads the data set, and sends the other processes their parts. It saves
  // the memory of one data set per process; see Accelerator::load_dataset.
  bool dispatch_batches = false;
  std::optional<std::uint64_t> data_seed;  // of loaders that shuffle; unset = their own
};

struct GradientAccumulationPlugin {
  std::optional<int> num_steps;      // batches per optimizer step; unset = as configured, else 1
  bool sync_with_dataloader = true;  // the last window of an epoch ends with the epoch
  bool sync_each_batch = false;  // average gradients after each batch: less memory, more traffic
};

struct ProjectConfiguration {
  std::string project_dir;  // checkpoints go to project_dir/checkpoints; empty = save_state(path).
                            // Of one run at a time: see FolderLock
  std::string logging_dir;  // of the trackers; empty = project_dir
  std::optional<std::size_t> total_limit;  // checkpoints to keep; unset = all
};

using ExactDataParallelOptions = ReplicateOptions;  // earlier name

// The program's settings for an Accelerator. Unset ones come from the environment, which
// `accelerate launch` fills, or from the configuration file; see accelerate_config.h.
struct AcceleratorOptions {
  bool device_placement = true;              // move models and batches to the device
  std::optional<Precision> mixed_precision;  // unset = as configured, else fp32
  GradientAccumulationPlugin gradient_accumulation;
  bool cpu = false;             // use the CPU even if GPUs are present
  std::string device = "auto";  // as for choose_device
  int threads = 0;              // of this process; 0 = choose
  std::optional<bool> debug;    // check shapes before collectives, and that backward was scaled
  std::string config_file;      // written by `accelerate config`; empty = none
  DataLoaderConfiguration data_loader;
  // The sums of gradients of prepared models, by name: {.sums = "exact", .micro_batch = 16}. Sums
  // in micro-batches, all but "fast", need LoaderMode::kGlobal, and wrap models on one process too;
  // their loss_scale follows the precision.
  ReplicateOptions replicate;
  std::optional<ExactDataParallelOptions> exact_sums;  // earlier name: replicate, with sums exact
  // Divides the state of each prepared optimizer among the processes: ZeroRedundancyOptimizer.
  bool zero_redundancy = false;
  // Divides prepared models, their gradients and the states of their optimizers among the
  // processes: FullyShardedDataParallel. Accelerate: fsdp_plugin.
  std::optional<FullyShardedOptions> fully_sharded;  // unset = every process has the whole model
  ProjectConfiguration project;
  std::vector<std::string> log_with;  // trackers: jsonl, csv, tensorboard
  // The scheduler steps when the optimizer does: not inside an accumulation window, and not after a
  // skipped step.
  bool step_scheduler_with_optimizer = true;
  // Scheduler steps per step() call. Python's rule: the number of processes if the global batch
  // grows with it (kPerProcess), else 1, so that a schedule in batches of one process ends with the
  // training. For a schedule in epochs, set 1.
  std::optional<int> scheduler_steps_per_call;  // unset = Python's rule
  ProcessGroupOptions process_group;
  bool quiet = false;  // omit informative log lines
};

// Those that a command line can set, and those that all processes must have alike.
std::span<const Option<AcceleratorOptions>> accelerator_option_table();

}  // namespace ladder
