// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <string_view>

#include "ladder/comm/process_group_options.h"
#include "ladder/core/largest_counts.h"
#include "ladder/io/option_table.h"
#include "ladder/parallel/replicate_options.h"
#include "mnist/options.h"
#include "mnist/recipe_options.h"

namespace mnist {

// The tables of the options that several stages have: a flag per row, in the order of --help.
//
// A function that reads a value in a form of its own, such as "0 1" for GPUs, is in
// command_line.cpp.

namespace tables {

using ladder::option, ladder::Option;
using enum ladder::Effect;
using Role = ladder::PathRole;

inline constexpr ladder::OptionDetails kNotNegative{.least = 0.0};
inline constexpr ladder::OptionDetails kSteps{0.0, ladder::kMaxOptimizerSteps};
inline constexpr ladder::OptionDetails kRanks{1.0, ladder::kLargestWorldSize};
inline constexpr ladder::OptionDetails kOutput{.role = Role::kWritten};
inline constexpr ladder::OptionDetails kInput{.role = Role::kRead};

inline constexpr Option<DataOptions> kData[] = {
    option<&DataOptions::root>(kOwn, "data_root", "FOLDER", "folder of the MNIST files",
                               {.role = Role::kFolder, .files = "*idx[13]-ubyte*|raw|MNIST"}),
    option<&DataOptions::limit_train>(kTraining, "limit_train", "N",
                                      "training images, the first N; 0 = all", kNotNegative),
    option<&DataOptions::limit_test>(kTogether, "limit_test", "N",
                                     "test images, the first N; 0 = all", kNotNegative),
    option<&DataOptions::augment>(
        kWeights, "augment", "none|shift",
        "augmentation; shift: random shift of each training image by up to 2 pixels"),
    option<&DataOptions::num_workers>(
        kOwn, "num_workers", "N", "threads that prepare batches ahead", {0.0, ladder::kMaxWorkers}),
    option<&DataOptions::pin_memory>(
        kOwn, "pin_memory", "", "keep images in host memory and batches page-locked: for a GPU"),
};

void read_gpus(const ladder::GivenValue& given, SingleOptions& options);
void read_device(const ladder::GivenValue& given, SingleOptions& options);

inline constexpr Option<SingleOptions> kMachine[] = {
    option<&SingleOptions::device>(kOwn, "device", "DEVICE", "auto, cpu, cuda or cuda:N",
                                   read_device),
    option<&SingleOptions::gpu>(kOwn, "gpu", "IDS", "GPUs visible to this program, such as 0,1",
                                read_gpus),
    option<&SingleOptions::threads>(
        kOwn, "threads", "N",
        "threads per process; 0 = OMP_NUM_THREADS, else 1 with several ranks, else all CPUs",
        kNotNegative),
};

inline constexpr Option<SingleOptions> kFiles[] = {
    option<&SingleOptions::save>(kFolder, "save", "PATH",
                                 "file for the weights, as safetensors; alone: "
                                 "mnist_cnn.safetensors; convnet: origin_checkpoint.safetensors",
                                 {.role = Role::kWritten, .alone = ""}),
    option<&SingleOptions::load>(kOwn, "load", "PATH", "safetensors file with the initial weights",
                                 kInput),
    option<&SingleOptions::record, &RecordOptions::metrics>(
        kOwn, "metrics", "PATH", "file for the record, as JSON lines", kOutput),
    option<&SingleOptions::monitor, &ladder::MonitorOptions::fingerprint>(
        kOwn, "fingerprint", "N",
        "steps between fingerprints, for PATH.rank0.jsonl beside --metrics; 0 = never", kSteps),
    option<&SingleOptions::monitor, &ladder::MonitorOptions::trace>(
        kOwn, "trace", "PATH", "file for a Chrome trace of steps 4 to 8, for ui.perfetto.dev",
        kOutput),
    option<&SingleOptions::record, &RecordOptions::quiet>(kOwn, "quiet", "",
                                                          "print only the results"),
};

inline constexpr Option<ReplicaOptions> kReplicas[] = {
    option<&ReplicaOptions::device_ids>(
        kOwn, "device_ids", "DEVICES",
        "devices of the replicas: 0,1 or cpu,cpu [all GPUs, else cpu,cpu]"),
    option<&ReplicaOptions::output_device>(
        kOwn, "output_device", "DEVICE",
        "device of the gathered outputs [the first of --device-ids]"),
};

// With the backends of this program.
inline const auto& group() {
  using P = ladder::ProcessGroupOptions;
  static const auto names = fmt::format("{}", fmt::join(ladder::backend_choices(), "|"));
  static const auto help = "communication backend; auto: " + ladder::automatic_backends();
  static const std::array rows = {
      option<&P::backend>(kOwn, "backend", names, help),
      option<&P::timeout>(kOwn, "timeout", "N", "seconds that a rank waits for the others",
                          {1.0, 604'800.0})};
  return rows;
}
inline constexpr Option<ladder::ProcessGroupOptions> kLauncher[] = {
    option<&ladder::ProcessGroupOptions::init_method>(
        kOwn, "init_method", "URL",
        "rendezvous of the ranks: env://, tcp://HOST:PORT, file:///PATH"),
    option<&ladder::ProcessGroupOptions::rank>(kOwn, "rank", "N",
                                               "rank of this process [as launched]",
                                               {0.0, ladder::kLargestWorldSize - 1}),
    option<&ladder::ProcessGroupOptions::world_size>(kOwn, "world_size", "N",
                                                     "number of processes [as launched]", kRanks),
};

constexpr std::array<Option<ProcessOptions>, 2> processes(std::string_view help) {
  return {option<&ProcessOptions::nprocs>(kOwn, "nprocs", "N", help, {0.0, 256.0}),
          option<&ProcessOptions::master_port>(
              kOwn, "master_port", "N", "rendezvous port; 0 picks a free one", {0.0, 65535.0})};
}
inline constexpr auto kProcesses = processes("processes to start; 0 = one per GPU, else 2");
inline constexpr auto kConfiguredProcesses =
    processes("processes to start; 0 = as in --config-file, else 1");

inline constexpr Option<RankOptions> kBatchMode[] = {
    option<&RankOptions::batch_mode>(
        kTraining, "batch_mode", "global|per-device",
        "--batch-size counts the images of all ranks, or of each rank"),
};
inline constexpr Option<SumOptions> kCheck[] = {
    option<&SumOptions::replicate, &ladder::ReplicateOptions::check_replicas>(
        kTogether, "check_replicas", "N",
        "steps between comparisons of all ranks' weights; 0 = never", kSteps),
};
// With the sums of this program.
inline const auto& sums() {
  using How = ladder::ReplicateOptions;
  static const auto names = ladder::sum_choices(), help = ladder::sums_help();
  static const std::array rows = {
      option<&SumOptions::replicate, &How::sums>(kWeights, "sums", names, help),
      option<&SumOptions::replicate, &How::micro_batch>(kWeights, "micro_batch", "N",
                                                        "images per micro-batch, with --sums exact",
                                                        {1.0, ladder::kMaxSamplesPerBatch})};
  return rows;
}

inline constexpr Option<ladder::SnapshotOptions> kSnapshot[] = {
    option<&ladder::SnapshotOptions::path>(
        kFolder, "snapshot", "FOLDER",
        "folder of the run's state; a run that finds one there resumes from it",
        {.role = Role::kFolder}),
    option<&ladder::SnapshotOptions::steps>(kTogether, "snapshot_steps", "N",
                                            "steps between snapshots; 0 = one after each epoch",
                                            kSteps),
};

inline constexpr Option<ladder::FullyShardedOptions> kFullySharded[] = {
    option<&ladder::FullyShardedOptions::reshard_after_forward>(
        kOwn, "reshard_after_forward", "",
        "divide each unit again between forward and backward [yes, but the outermost]"),
    option<&ladder::FullyShardedOptions::prefetch>(
        kOwn, "prefetch", "", "gather the next unit while one computes, unless in shared memory"),
    option<&ladder::FullyShardedOptions::param_precision>(
        kWeights, "param_precision", "fp32|bf16|fp16",
        "precision of whole parameters; those that the optimizer steps stay fp32"),
};

inline constexpr Option<ladder::PipelineOptions> kPipeline[] = {
    option<&ladder::PipelineOptions::micro_batches>(kWeights, "micro_batches", "N",
                                                    "micro-batches per batch",
                                                    {1.0, ladder::kMaxBatchesPerStep}),
    option<&ladder::PipelineOptions::schedule>(
        kTogether, "schedule", "1f1b|gpipe",
        "order of forwards and backwards; gpipe: all forwards first"),
};

}  // namespace tables

}  // namespace mnist
