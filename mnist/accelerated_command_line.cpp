// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "ladder/accelerate/accelerate_config.h"
#include "ladder/core/error.h"
#include "ladder/core/gpus.h"
#include "ladder/core/largest_counts.h"
#include "mnist/accelerated_main.h"
#include "mnist/accelerated_options.h"
#include "mnist/command_line_parts.h"
#include "mnist/flags.h"
#include "mnist/hparams_file.h"
#include "mnist/processes.h"
#include "mnist/trainer_flags.h"

namespace mnist {

using namespace ladder;
using enum Effect;

namespace {

constexpr const char* kAsConfigured = "processes to start; 0 = as in --config-file, else 1";

// Instead of --batch-mode: how a prepared loader divides its batches.
void add_loader_flags(Flags& flags, DataLoaderConfiguration& loader) {
  flags.choice(kTraining, "--loader-mode", loader.mode,
               {{"global", LoaderMode::kGlobal},
                {"per-process", LoaderMode::kPerProcess},
                {"split-batches", LoaderMode::kSplitBatches}},
               "distribution of batches: parts of each, whole batches, or parts as in Accelerate");
  flags.flag(kTraining, "--even-batches,!--no-even-batches", loader.even_batches,
             "repeated samples in the last round, in the modes of Accelerate [yes]");
  flags.flag(kTogether, "--dispatch-batches", loader.dispatch_batches,
             "reading on the main process alone, which sends the others their parts");
}

// N steps, or "epoch".
void add_checkpointing_steps(Flags& flags, AcceleratedOptions& options) {
  flags.value(
      kTogether, "--checkpointing-steps", "N|epoch",
      "steps between checkpoints; epoch: one after each epoch",
      [&options](const std::string& flag, const std::string& value) {
        options.checkpoint_epochs = value == "epoch";
        if (options.checkpoint_epochs) return;
        options.checkpointing_steps =
            integer_in({1, kMostOptimizerSteps}, flag, value, "a whole number, or \"epoch\"");
      },
      [&options]() -> std::string {
        if (options.checkpoint_epochs) return "epoch";
        return options.checkpointing_steps > 0 ? fmt::format("{}", options.checkpointing_steps)
                                               : "";
      });
}

void add_checkpoint_flags(Flags& flags, AcceleratedOptions& options) {
  auto& project = options.accelerator.project;
  flags.text(kFolder, "--project-dir", project.project_dir, "FOLDER",
             "folder for checkpoints/checkpoint_N and the trackers' files");
  add_checkpointing_steps(flags, options);
  flags.integer(kTogether, "--total-limit", project.total_limit, {1},
                "checkpoints to keep; the oldest are deleted first [all]");
  flags.optional_path(kFolder, "--resume,--resume-from-checkpoint", options.resume_from,
                      "checkpoint to resume from; alone: the last in --project-dir; auto: the "
                      "newest whole one, if any",
                      "PATH|auto");
  flags.integer(kTraining, "--scheduler-steps-per-call",
                options.accelerator.scheduler_steps_per_call, {1, kLargestWorldSize},
                "scheduler steps per step() call [as Accelerate: 1, per-process: nprocs]");
  add_list(flags, kOwn, "--log-with", options.accelerator.log_with, "NAMES",
           "names separated by commas", "trackers: jsonl,csv,tensorboard, or all");
}

void add_config_file_flag(Flags& flags, AcceleratorOptions& accelerator) {
  flags.text(kOwn, "--config-file", accelerator.config_file, "PATH",
             "configuration written by `accelerate config`");
}

void add_accelerator_flags(Flags& flags, AcceleratedOptions& options, std::string& hparams) {
  auto& accelerator = options.accelerator;
  flags.choice(kTogether, "--mixed-precision,--precision", accelerator.mixed_precision,
               {{"auto", std::nullopt},
                {"no", Precision::kFp32},
                {"fp32", Precision::kFp32},
                {"bf16", Precision::kBf16},
                {"fp16", Precision::kFp16}},
               "precision; auto: as set by the launcher or --config-file, else no");
  flags.integer(kTraining, "--gradient-accumulation-steps",
                accelerator.gradient_accumulation.num_steps, {1, kMostBatchesPerStep},
                "batches per optimizer step [1]");
  flags.flag(kTogether, "--sync-each-batch", accelerator.gradient_accumulation.sync_each_batch,
             "gradient average per batch instead of per optimizer step");
  flags.flag(kTogether, "--zero-redundancy", accelerator.zero_redundancy,
             "optimizer state divided among the processes");
  flags.flag(kOwn, "--cpu", accelerator.cpu, "use the CPU even if GPUs are present");
  flags.flag(kOwn, "--debug", accelerator.debug, "check shapes before collectives; slower",
             "false");
  add_config_file_flag(flags, accelerator);
  add_loader_flags(flags, accelerator.data_loader);
  add_checkpoint_flags(flags, options);
  flags.text(kOwn, "--hparams", hparams, "PATH",
             "YAML file with flags of this list, one NAME: VALUE per line");
}

// Flags of the command line take precedence over those of the file.
void apply_hparams(Flags& flags, const std::string& path) {
  if (path.empty()) return;
  for (const auto& [name, value] : read_hparams(path)) {
    const std::string flag = "--" + name;
    const auto where = fmt::format("{}: {}", path, name);
    if (!flags.has(flag)) throw flags.unknown_flag(where, flag);
    if (flag == "--hparams" || flag == "--help" || flag == "--version" || flag == "--resume") {
      throw UsageError::conflict(where, "is for the command line alone", "omit it in the file");
    }
    try {
      flags.preset(flag, value, where);
    } catch (const UsageError& error) {
      if (std::string_view(error.what()).starts_with(path)) throw;
      throw UsageError::conflict(path, error.what(), "");
    } catch (const CLI::Error&) {
      throw UsageError::malformed(where, "a value that the flag takes", value,
                                  "--help shows its form");
    }
  }
}

void require_project(const AcceleratedOptions& options) {
  const auto& accelerator = options.accelerator;
  const bool checkpoints = options.checkpoint_epochs || options.checkpointing_steps > 0;
  const bool newest = options.resume_from == "auto";  // if there is one
  if (options.resume && !newest && !options.load.empty()) {
    throw UsageError::conflict("--load", "--resume loads the weights of its checkpoint",
                               "give one of them");
  }
  if (accelerator.project.total_limit && !checkpoints) {
    throw UsageError::missing("--total-limit", "--checkpointing-steps",
                              "add --checkpointing-steps epoch");
  }
  if (!accelerator.project.project_dir.empty()) return;
  const auto missing = [](const char* flag) {
    return UsageError::missing(flag, "--project-dir FOLDER, for its files",
                               "add --project-dir runs/mnist");
  };
  if (checkpoints) throw missing("--checkpointing-steps");
  if (!accelerator.log_with.empty()) throw missing("--log-with");
  if (newest || (options.resume && options.resume_from.empty())) throw missing("--resume");
}

// The Accelerator's part of flags that other stages have too.
void complete_accelerator(AcceleratorOptions& accelerator, const GroupOptions& options) {
  accelerator.device = options.device;
  accelerator.threads = options.threads;
  accelerator.quiet = options.record.quiet;
  accelerator.process_group = options.process_group;
}

// Without a training nothing resumes, and nothing would be recorded.
void require_training(TrainerRunOptions& options) {
  if (!options.training.do_eval && !options.record.metrics.empty()) {
    options.notes.emplace_back("no result is recorded: there is no evaluation");
  }
  if (options.training.do_train) return;
  const auto refuse = [](const char* flag, const char* hint) {
    throw UsageError::conflict(flag, "it needs a training, and --no-do-train excludes one", hint);
  };
  if (!options.training.resume_from_checkpoint.empty()) {
    refuse("--resume", "to evaluate a checkpoint: --load CHECKPOINT/model.safetensors");
  }
  if (!options.monitor.trace.empty()) refuse("--trace", "omit it");
  if (options.monitor.fingerprint != 0) refuse("--fingerprint", "omit it");
  if (!options.record.metrics.empty()) refuse("--metrics", "--output-dir FOLDER keeps the metrics");
}

// Without a launcher, the configuration file decides the number of processes. Flags take
// precedence.
void apply_config_file(const SingleOptions& options, const AcceleratorOptions& accelerator,
                       ProcessOptions& processes) {
  if (processes.launched) return;
  AccelerateSources sources;
  if (!accelerator.config_file.empty()) {
    sources.file = read_config_file(accelerator.config_file);
  }
  const auto config = resolve_accelerate_config(sources);
  if (config.num_machines > 1) {
    throw UsageError::conflict(
        accelerator.config_file, fmt::format("num_machines is {}", config.num_machines),
        "start it on each of them with accelerate launch --no_python --config_file FILE PROGRAM");
  }
  const bool several = config.distributed_type != DistributedType::kNo;
  if (processes.nprocs == 0) processes.nprocs = several ? config.num_processes.value_or(1) : 1;
  if (processes.master_port == 0) processes.master_port = config.main_process_port.value_or(0);
  const bool may_choose_gpus = options.gpu.empty() && config.gpu_ids != "all" && !config.use_cpu;
  if (may_choose_gpus && machine_gpu_count() > 0) {
    ::setenv("CUDA_VISIBLE_DEVICES", config.gpu_ids.c_str(), /*replace=*/1);
  }
}

void choose(GroupOptions& options, AcceleratorOptions& accelerator, ProcessOptions& processes) {
  find_launcher(options, processes);
  accelerator.device = options.device;
  apply_config_file(options, accelerator, processes);
  complete_nprocs(options, processes);
}

}  // namespace

void add_flags(Flags& flags, AcceleratedOptions& options, CommandTexts& texts) {
  add_flags(flags, static_cast<SingleOptions&>(options), texts);
  add_group_flags(flags, options, texts.timeout_seconds);
  add_rank_flags(flags, options.recipe, options.check_replicas, texts.sums);
  add_process_flags(flags, options, kAsConfigured);
  add_launcher_flags(flags, options);
  add_accelerator_flags(flags, options, texts.hparams);
}

// The training arguments replace most of the recipe.
void add_flags(Flags& flags, TrainerRunOptions& options, CommandTexts& texts) {
  add_recipe_name(flags, options.recipe);
  add_network_flags(flags, options.recipe);
  add_data_flags(flags, options.data);
  add_machine_flags(flags, options);
  add_output_flags(flags, options, texts);
  add_process_flags(flags, options, kAsConfigured);
  add_launcher_flags(flags, options);
  add_config_file_flag(flags, options.accelerator);
  add_trainer_flags(flags, options, texts.trainer);
}

void apply_presets(Flags& flags, AcceleratedOptions& /*options*/, const CommandTexts& texts) {
  apply_hparams(flags, texts.hparams);
}

void apply_presets(Flags& flags, TrainerRunOptions& options, const CommandTexts& texts) {
  apply_trainer_presets(flags, options, texts.trainer);
}

void complete(AcceleratedOptions& options, const Flags& flags, const CommandTexts& texts) {
  auto& accelerator = options.accelerator;
  complete_group(options, texts, /*require_launcher=*/false);
  complete_accelerator(accelerator, options);
  options.resume = flags.given("--resume");
  require_project(options);
  require_growing_batch(options.recipe, accelerator.data_loader.mode == LoaderMode::kPerProcess,
                        "--loader-mode per-process");
  accelerator.exact_sums = exact_options(texts.sums, flags, options.check_replicas);
  require_masks_by_position(options.recipe, accelerator.exact_sums.has_value());
  require_global_batches(
      !accelerator.exact_sums || accelerator.data_loader.mode == LoaderMode::kGlobal,
      "--loader-mode");
  complete_all(options, flags, texts);
}

void complete(TrainerRunOptions& options, const Flags& flags, const CommandTexts& texts) {
  options.process_group.torchrun = torchrun_here();
  complete_trainer(options);
  require_masks_by_position(options.recipe, options.training.sums == Sums::kExact);
  require_training(options);
  complete_accelerator(options.accelerator, options);
  complete_all(options, flags, texts);
}

void share_settings(AcceleratedOptions& options) {
  share_settings(static_cast<GroupOptions&>(options));
  options.accelerator.process_group.settings = options.process_group.settings;
}

void share_settings(TrainerRunOptions& options) {
  share_settings(static_cast<GroupOptions&>(options));
  options.accelerator.process_group.settings = options.process_group.settings;
  complete_settings(options.monitor.settings);
}

void choose_processes(AcceleratedOptions& options) {
  choose(options, options.accelerator, options);
}

void choose_processes(TrainerRunOptions& options) { choose(options, options.accelerator, options); }

template CommandLine<AcceleratedOptions> parse_command_line(int, const char* const*);
template CommandLine<TrainerRunOptions> parse_command_line(int, const char* const*);

}  // namespace mnist
