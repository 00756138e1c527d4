// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ladder/comm/process_group_options.h"
#include "ladder/core/precision.h"

namespace ladder {

// How a prepared loader divides its batches over the processes.
enum class LoaderMode {
  kGlobal,      // the loader's batch size is that of the run: the processes divide each batch,
                // sizes that do not divide and a short last batch included. Same steps and same
                // samples for any number of processes; nothing is repeated
  kPerProcess,  // Accelerate's default: each process takes whole batches in turn. The batch of the
                // run grows with the processes, and an epoch has fewer steps
  kSplitBatches,  // Accelerate's split_batches: as kGlobal, but the size must divide, and a short
                  // last batch is filled up
};

struct DataLoaderConfiguration {
  LoaderMode mode = LoaderMode::kGlobal;
  // The other modes: repeat the first samples so that all processes get as many in the last round.
  // gather_for_metrics removes them again. false: nothing is repeated, and the last batch of some
  // processes is short or empty.
  bool even_batches = true;
  // Only the main process holds the data set and reads; it sends all processes their parts. For a
  // data set that must not lie in memory once a process; see Accelerator::load_dataset.
  bool dispatch_batches = false;
  std::optional<std::uint64_t> data_seed;  // of loaders that shuffle; unset = as they were made
};

struct GradientAccumulationPlugin {
  std::optional<int> num_steps;      // backward passes a step; unset = as configured, else 1
  bool sync_with_dataloader = true;  // the last window of an epoch ends with it, however short
  bool sync_each_batch = false;  // average the gradients of each part: less memory, more traffic
};

struct ProjectConfiguration {
  std::string project_dir;  // checkpoints go to project_dir/checkpoints; empty = name each yourself
  std::string logging_dir;  // of the trackers; empty = project_dir
  std::optional<std::size_t> total_limit;  // checkpoints to keep; unset = all
};

// What an Accelerator is told by the program. What is left out, the environment that `accelerate
// launch` sets and the configuration file say; see accelerate_config.h.
struct AcceleratorOptions {
  bool device_placement = true;              // models and batches go to the device
  std::optional<Precision> mixed_precision;  // unset = as configured, else fp32
  GradientAccumulationPlugin gradient_accumulation;
  bool cpu = false;             // the CPU although there are GPUs
  std::string device = "auto";  // as for choose_device
  int threads = 0;              // of this process; 0 = choose
  std::optional<bool> debug;    // check shapes before collectives, and how gradients came about
  std::string config_file;      // what `accelerate config` wrote; empty = none
  DataLoaderConfiguration data_loader;
  ProjectConfiguration project;
  std::vector<std::string> log_with;  // trackers: jsonl, csv, tensorboard
  // The scheduler steps when the optimizer does: not inside an accumulation window, not when the
  // step was skipped.
  bool step_scheduler_with_optimizer = true;
  // How often a scheduler's step() steps. Python multiplies by the number of processes wherever the
  // batch of the run grows with them (kPerProcess), so that a schedule counted in batches of one
  // process ends in time. A schedule of epochs then falls that much too early: set 1.
  std::optional<int> scheduler_steps_per_call;  // unset = Python's rule
  ProcessGroupOptions process_group;
  bool quiet = false;  // leave out what is merely informative
};

}  // namespace ladder
