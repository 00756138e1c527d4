// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/accelerator_options.h"

#include "ladder/core/largest_counts.h"

namespace ladder {
namespace {

using O = AcceleratorOptions;
using enum Effect;

// fp32 is another name of no.
void read_precision(const GivenValue& given, O& options) {
  constexpr std::optional<Precision> kPrecisions[] = {
      std::nullopt, Precision::kFp32, Precision::kFp32, Precision::kBf16, Precision::kFp16};
  options.mixed_precision = kPrecisions[choice_of(given)];
}

WrittenJson write_precision(const OptionColumns& /*row*/, const O& options) {
  constexpr const char* kNames[] = {"no", "bf16", "fp16"};
  return options.mixed_precision ? kNames[static_cast<int>(*options.mixed_precision)] : "auto";
}

constexpr Option<O> kRows[] = {
    {{kTogether, "mixed_precision", "auto|no|fp32|bf16|fp16",
      "precision; auto: as set by the launcher or a configuration file, else no"},
     read_precision,
     write_precision},
    option<&O::gradient_accumulation, &GradientAccumulationPlugin::num_steps>(
        kTraining, "gradient_accumulation_steps", "N", "batches per optimizer step [1]",
        {1.0, kMostBatchesPerStep}),
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
