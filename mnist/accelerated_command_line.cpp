// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <cstdlib>
#include <set>
#include <span>
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

// N steps, or "epoch".
void read_checkpointing_steps(const GivenValue& given, AcceleratedOptions& options) {
  options.checkpoint_epochs = given.value == "epoch";
  if (!options.checkpoint_epochs) read_value(given, options.checkpointing_steps);
}
WrittenJson write_checkpointing_steps(const OptionColumns& /*row*/, const AcceleratedOptions& o) {
  if (o.checkpoint_epochs) return "epoch";
  return o.checkpointing_steps > 0 ? WrittenJson(o.checkpointing_steps) : WrittenJson();
}

constexpr Option<AcceleratedOptions> kCheckpoints[] = {
    option<AcceleratedOptions>(kTogether, "checkpointing_steps", "N|epoch",
                               "steps between checkpoints; epoch: one after each epoch",
                               read_checkpointing_steps, write_checkpointing_steps,
                               {1.0, kMaxOptimizerSteps}),
    option<&AcceleratedOptions::resume_from>(
        kFolder, "resume", "PATH|auto",
        "checkpoint to resume from; alone: the last in --project-dir; auto: the newest whole one, "
        "if any",
        {.role = PathRole::kFolder, .alone = ""}),
};
constexpr Option<CommandTexts> kHparams[] = {
    option<&CommandTexts::hparams>(kOwn, "hparams", "PATH",
                                   "YAML file with flags of this list, one NAME: VALUE per line",
                                   tables::kInput),
};

bool saves(const AcceleratedOptions& o) { return o.checkpoint_epochs || o.checkpointing_steps > 0; }
bool has_project(const AcceleratedOptions& o) { return !o.accelerator.project.project_dir.empty(); }
bool grows(const AcceleratedOptions& o) {
  return o.accelerator.data_loader.mode == LoaderMode::kPerProcess;
}

constexpr const char* kNoProject = "expected --project-dir FOLDER, for its files, not set";
constexpr const char* kAddProject = "add --project-dir runs/mnist";

constexpr Rule<AcceleratedOptions> kAcceleratedRules[] = {
    {"--load",
     [](const AcceleratedOptions& o) {
       return o.resume && o.resume_from != "auto" && !o.load.empty();
     },
     "--resume loads the weights of its checkpoint", "give one of them"},
    {"--total-limit",
     [](const AcceleratedOptions& o) { return o.accelerator.project.total_limit && !saves(o); },
     "expected --checkpointing-steps, not set", "add --checkpointing-steps epoch"},
    {"--checkpointing-steps",
     [](const AcceleratedOptions& o) { return saves(o) && !has_project(o); }, kNoProject,
     kAddProject},
    {"--log-with",
     [](const AcceleratedOptions& o) { return !o.accelerator.log_with.empty() && !has_project(o); },
     kNoProject, kAddProject},
    {"--resume",
     [](const AcceleratedOptions& o) {
       return o.resume && (o.resume_from.empty() || o.resume_from == "auto") && !has_project(o);
     },
     kNoProject, kAddProject},
    {"--scale-lr",
     [](const AcceleratedOptions& o) { return o.recipe.scale_lr != LrScaling::kNone && !grows(o); },
     "in global mode the batch does not grow with the ranks",
     "add --loader-mode per-process, or omit --scale-lr"},
    kNoMicroBatches<AcceleratedOptions>,
    kMasksByPosition<AcceleratedOptions>,
    {"--sums exact",
     [](const AcceleratedOptions& o) {
       return in_micro_batches(o) && o.accelerator.data_loader.mode != LoaderMode::kGlobal;
     },
     "with this --loader-mode the batches depend on the number of ranks",
     "use --loader-mode global: the ranks divide each batch"},
};

// Flags of the command line take precedence over those of the file.
void apply_hparams(Flags& flags, const std::string& path) {
  if (path.empty()) return;
  std::set<std::string> set;
  for (const auto& [name, value] : read_hparams(path)) {
    const std::string flag = "--" + name;
    const auto where = fmt::format("{}: {}", path, name);
    if (!flags.has(flag)) throw flags.unknown_flag(where, flag);
    if (!set.insert(flags.own_name(flag)).second) {
      throw UsageError::conflict(where, "sets " + flags.own_name(flag) + " again",
                                 "keep one of the two");
    }
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

// The Accelerator's part of flags that other stages have too.
void complete_accelerator(AcceleratorOptions& accelerator, const GroupOptions& options) {
  accelerator.device = options.device;
  accelerator.threads = options.threads;
  accelerator.quiet = options.record.quiet;
  accelerator.process_group = options.process_group;
}

// Without a training nothing resumes, and nothing would be recorded.
constexpr const char* kNeedsTraining = "it needs a training, and --no-do-train excludes one";
constexpr Rule<TrainerRunOptions> kTrainerRules[] = {
    kMasksByPosition<TrainerRunOptions>,
    {"--resume",
     [](const TrainerRunOptions& o) {
       return !o.training.do_train && !o.training.resume_from_checkpoint.empty();
     },
     kNeedsTraining, "to evaluate a checkpoint: --load CHECKPOINT/model.safetensors"},
    {"--trace",
     [](const TrainerRunOptions& o) { return !o.training.do_train && !o.monitor.trace.empty(); },
     kNeedsTraining, "omit it"},
    {"--fingerprint",
     [](const TrainerRunOptions& o) { return !o.training.do_train && o.monitor.fingerprint != 0; },
     kNeedsTraining, "omit it"},
    {"--metrics",
     [](const TrainerRunOptions& o) { return !o.training.do_train && !o.record.metrics.empty(); },
     kNeedsTraining, "--output-dir FOLDER keeps the metrics"},
};

// Without a launcher, the configuration file decides the number of processes. Flags take
// precedence.
void apply_config_file(const SingleOptions& options, const AcceleratorOptions& accelerator,
                       ProcessOptions& processes) {
  if (processes.launched) return;
  AccelerateConfig config;
  if (!accelerator.config_file.empty()) read_config_file(accelerator.config_file, config);
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
  flags.add(tables::group(), options.process_group);
  add_rank_flags(flags, options, options);
  flags.add<ProcessOptions>(tables::kConfiguredProcesses, options);
  flags.add(tables::kLauncher, options.process_group);
  flags.add(accelerator_option_table(), options.accelerator);
  flags.add(kCheckpoints, options);
  flags.add(kHparams, texts);
}

// The training arguments replace most of the recipe.
void add_flags(Flags& flags, TrainerRunOptions& options, CommandTexts& texts) {
  add_trainer_flags(flags, options, texts);
  flags.add(tables::kRecipe, options.recipe);
  add_shared_flags(flags, options);
  flags.add(tables::group(), options.process_group);
  flags.add<ProcessOptions>(tables::kConfiguredProcesses, options);
  flags.add(tables::kLauncher, options.process_group);
  flags.add(std::span(find_option(accelerator_option_table(), "config_file"), 1),
            options.accelerator);
}

void apply_presets(Flags& flags, AcceleratedOptions& /*options*/, CommandTexts& texts) {
  apply_hparams(flags, texts.hparams);
}

void apply_presets(Flags& flags, TrainerRunOptions& options, CommandTexts& texts) {
  apply_trainer_presets(flags, options, texts);
}

void complete(AcceleratedOptions& options, const Flags& flags, const CommandTexts& /*texts*/) {
  complete_group(options, /*require_launcher=*/false);
  complete_accelerator(options.accelerator, options);
  options.resume = flags.given("--resume");
  require_rules(kAcceleratedRules, options);
  options.accelerator.replicate = options.replicate;
  complete_all(options, flags);
  AccelerateConfig environment{.gradient_accumulation_steps = 0};
  read_accelerate_environment(environment);
  if (environment.gradient_accumulation_steps == 0) return;
  for (auto& setting : options.monitor.settings) {  // a resume compares what the run has done
    if (setting.name != "--gradient-accumulation-steps") continue;
    setting.value = fmt::format("{}", environment.gradient_accumulation_steps);
  }
}

void complete(TrainerRunOptions& options, const Flags& flags, const CommandTexts& texts) {
  for (auto& note : resolve(options.training)) options.notes.push_back(std::move(note));
  flags.share();
  options.data.pin_memory = options.data.pin_memory && texts.pin_memory;
  options.recipe.label_smoothing = options.training.label_smoothing_factor;
  require_rules(kTrainerRules, options);
  if (!options.training.do_eval && !options.record.metrics.empty()) {
    options.notes.emplace_back("no result is recorded: there is no evaluation");
  }
  complete_group(options, /*require_launcher=*/false);
  complete_accelerator(options.accelerator, options);
  complete_all(options, flags);
  if (options.parity) name_recipe(options);
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
