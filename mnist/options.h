// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ladder/checkpoint/snapshot_options.h"
#include "ladder/comm/process_group_options.h"
#include "ladder/core/precision.h"
#include "ladder/data/batch_mode.h"
#include "ladder/monitor/monitor_options.h"
#include "ladder/parallel/fully_sharded_options.h"
#include "ladder/parallel/pipeline_options.h"
#include "ladder/parallel/replicate_options.h"
#include "mnist/recipe_options.h"

namespace mnist {

// The options of each program: one struct per stage, which extends that of an earlier one by its
// own idea. A field's flag is in the comment; flags of the same meaning have the same name
// everywhere.

struct DataOptions {
  std::string root;              // --data-root: folder of the four data files
  std::int64_t limit_train = 0;  // --limit-train: use only the first images; 0 = all
  std::int64_t limit_test = 0;   // --limit-test
  bool augment = false;          // --augment shift: move each training image by up to 2 pixels
  int num_workers = 0;           // --num-workers: threads that prepare batches ahead
  bool pin_memory = false;       // --pin-memory: images in host memory, page-locked batches
};

struct RecordOptions {
  std::string stage;              // name of the program
  std::string metrics;            // --metrics: file of JSON lines; empty = none
  std::string save;               // --save; empty = none
  bool quiet = false;             // --quiet: no log; results are still printed
  std::optional<double> started;  // steady_seconds() at the start; unset = at construction
  std::vector<std::pair<std::string, std::string>> flags;     // all options as resolved
  std::vector<std::pair<std::string, std::string>> versions;  // of libraries that only mnist/ uses
};

// The options of all stages, and those of stage 0.
struct SingleOptions {
  RecipeOptions recipe;  // --recipe, --epochs, --batch-size, --lr, --seed, ...
  DataOptions data;
  RecordOptions record;
  ladder::MonitorOptions monitor;  // --fingerprint, --trace, --quiet
  std::string device = "auto";     // --device: auto, cpu, cuda, cuda:N
  std::vector<std::string> gpu;    // --gpu 0,1: GPUs visible to this program; empty = all
  int threads = 0;                 // --threads; 0 = choose
  std::string save;                // --save: file for the weights; empty = none
  std::string load;                // --load: file to start from; empty = fresh weights
  std::vector<std::string> notes;  // for the log: deprecated names, flags without effect
};

// Stage 1: several devices in one process.
struct ReplicaOptions : SingleOptions {
  std::vector<std::string> device_ids;  // --device-ids: one replica each; empty = choose
  std::string output_device;            // --output-device: of the loss; empty = the first
};

// Stages 2 to 6: several processes, one rank each.
struct GroupOptions : SingleOptions {
  ladder::ProcessGroupOptions process_group;  // --backend, --timeout, --init-method, ...
};

// --sums, --micro-batch, --check-replicas.
struct SumOptions {
  ladder::ReplicateOptions replicate;

  std::int64_t micro_batch() const { return replicate.sampler_micro_batch(); }
};

// Stages 2 to 4, which divide batches and replicate the model themselves.
struct RankOptions : GroupOptions, SumOptions {
  ladder::BatchMode batch_mode = ladder::BatchMode::kGlobal;  // --batch-mode
};

// The processes that a program starts itself.
struct ProcessOptions {
  int nprocs = 0;         // --nprocs; 0 = one per GPU, else 2
  int master_port = 0;    // --master-port; 0 = a free port
  bool launched = false;  // a launcher has started the ranks: start no others
};

struct SpawnedOptions : RankOptions, ProcessOptions {};  // stage 2

// Stage 3.
struct LaunchedOptions : RankOptions {
  ladder::SnapshotOptions snapshot;  // --snapshot, --snapshot-steps
};

// Stage 4.
struct AmpOptions : RankOptions, ProcessOptions {
  std::optional<ladder::Precision> precision;  // --precision; unset = that of the device
  bool sync_bn = true;                         // --sync-bn: one BatchNorm over all ranks
};

// beyond/fully_sharded; beyond/zero_redundancy has those of stage 2.
struct FullyShardedRunOptions : SpawnedOptions {
  ladder::FullyShardedOptions fully_sharded;  // --reshard-after-forward, --prefetch, ...
};

// beyond/pipeline.
struct PipelineRunOptions : GroupOptions, ProcessOptions, SumOptions {
  ladder::PipelineOptions pipeline;  // --micro-batches, --schedule
};

}  // namespace mnist
