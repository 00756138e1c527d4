// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/accelerator_options.h"

#include "ladder/core/largest_counts.h"

namespace ladder {
namespace {

using O = AcceleratorOptions;
using enum Effect;

// fp32 is another name of no.
void read_option(const GivenValue& given, O& options) {
  const bool is_fp32 = given.value == "fp32";
  read_member<O, &O::mixed_precision>(
      {given.row, given.where, is_fp32 ? nlohmann::json("no") : given.value, given.standard},
      options);
}

constexpr Option<O> kRows[] = {
    option<&O::mixed_precision>(
        kTogether, "mixed_precision", "auto|no|bf16|fp16",
        "precision; no = fp32; auto: as set by the launcher or a configuration file, else no",
        read_option),
    option<&O::gradient_accumulation, &GradientAccumulationPlugin::num_steps>(
        kTraining, "gradient_accumulation_steps", "N", "batches per optimizer step [1]",
        {1.0, kMaxBatchesPerStep}),
    option<&O::gradient_accumulation, &GradientAccumulationPlugin::sync_with_dataloader>(
        kTraining, "sync_with_dataloader", "",
        "optimizer step at the end of an epoch, also within an accumulation window [yes]"),
    option<&O::gradient_accumulation, &GradientAccumulationPlugin::sync_each_batch>(
        kTogether, "sync_each_batch", "",
        "gradient average per batch instead of per optimizer step"),
    option<&O::zero_redundancy>(kTogether, "zero_redundancy", "",
                                "optimizer state divided among the processes"),
    option<&O::cpu>(kOwn, "cpu", "", "use the CPU even if GPUs are present"),
    option<&O::debug>(kTogether, "debug", "", "check shapes before collectives; slower [no]"),
    option<&O::config_file>(kOwn, "config_file", "PATH",
                            "configuration written by `accelerate config`",
                            {.role = PathRole::kRead}),
    option<&O::data_loader, &DataLoaderConfiguration::mode>(
        kTraining, "loader_mode", "global|per-process|split-batches",
        "distribution of batches: parts of each, whole batches, or parts as in Accelerate"),
    option<&O::data_loader, &DataLoaderConfiguration::even_batches>(
        kTraining, "even_batches", "",
        "repeated samples in the last round, in the modes of Accelerate [yes]"),
    option<&O::data_loader, &DataLoaderConfiguration::dispatch_batches>(
        kTogether, "dispatch_batches", "",
        "reading on the main process alone, which sends the others their parts"),
    option<&O::project, &ProjectConfiguration::project_dir>(
        kFolder, "project_dir", "FOLDER",
        "folder for checkpoints/checkpoint_N and the trackers' files",
        {.role = PathRole::kFolder, .files = "checkpoints"}),
    option<&O::project, &ProjectConfiguration::total_limit>(
        kTogether, "total_limit", "N", "checkpoints to keep; the oldest are deleted first [all]",
        {1.0}),
    option<&O::scheduler_steps_per_call>(
        kTraining, "scheduler_steps_per_call", "N",
        "scheduler steps per step() call [as Accelerate: 1, per-process: nprocs]",
        {1.0, kLargestWorldSize}),
    option<&O::log_with>(kOwn, "log_with", "NAMES", "trackers: jsonl,csv,tensorboard, or all"),
};

}  // namespace

std::span<const Option<AcceleratorOptions>> accelerator_option_table() { return kRows; }

}  // namespace ladder
