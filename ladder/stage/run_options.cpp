// SPDX-License-Identifier: Apache-2.0
#include "ladder/stage/run_options.h"

#include <fmt/core.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ladder/accelerate/accelerate_config.h"
#include "ladder/checkpoint/atomic_file.h"
#include "ladder/core/error.h"
#include "ladder/core/versions.h"
#include "ladder/stage/flags.h"
#include "ladder/stage/trainer_flags.h"

namespace ladder {
namespace {

void add_training_flags(Flags& flags, RecipeOptions& recipe) {
  flags.integer("-e,--epochs", recipe.epochs, "number of total epochs to run [1; convnet: 3]");
  flags.integer("-b,--batch-size", recipe.batch_size, "images a step [64; convnet: 32]");
  flags.integer("--eval-batch-size", recipe.eval_batch_size,
                "images a step of the evaluation [64; convnet: 32]");
  flags.number("--lr", recipe.lr, "learning rate [1e-3; convnet: 1e-4]");
}

void add_network_flags(Flags& flags, RecipeOptions& recipe) {
  flags.choice(
      "--head", {"log-softmax", "logits"},
      [&recipe](const std::string& value) { recipe.head = value; }, "recipe",
      "what the network ends in [log-softmax; convnet: logits]");
  flags.integer("--width", recipe.width, 1, "times as many channels in the network");
  flags.toggle(
      "--normalize,!--no-normalize", [&recipe](bool value) { recipe.normalize = value; },
      "subtract mean 0.1307, divide by 0.3081 [yes; convnet: no]");
  flags.choice(
      "--math", {"fast", "reference"},
      [&recipe](const std::string& value) {
        recipe.math = value == "fast" ? Math::kFast : Math::kReference;
      },
      "fast", "reference: bit-equal to Python, slower");
}

// A Trainer's arguments say all of the recipe but its network.
void add_recipe_flags(Flags& flags, RecipeOptions& recipe, const StageFlags& stage) {
  flags.choice(
      "--recipe", {"basicnet", "convnet"},
      [&recipe](const std::string& value) { recipe.name = value; }, recipe.name,
      "network, loss, optimizer and their defaults");
  if (!stage.trainer) add_training_flags(flags, recipe);
  add_network_flags(flags, recipe);
  if (stage.trainer) return;
  flags.choice(
      "--scheduler", {"none", "step"},
      [&recipe](const std::string& value) { recipe.scheduler = value; }, recipe.scheduler,
      "of the learning rate; step: a tenth of it every 30 epochs");
  flags.integer("--seed", recipe.seed, 0, "of weights, order, dropout and augmentation");
}

void add_data_flags(Flags& flags, RunOptions& options, const StageFlags& stage) {
  flags.text("--data-root", options.data_root, "FOLDER", "folder of the MNIST files");
  flags.integer("--limit-train", options.limit_train, 0, "use only the first N images; 0 = all");
  flags.integer("--limit-test", options.limit_test, 0, "test on the first N images; 0 = all");
  flags.choice(
      "--augment", {"none", "shift"},
      [&options](const std::string& value) { options.augment_shift = value == "shift"; }, "none",
      "move each training image by up to 2 pixels at random");
  if (stage.trainer) return;
  flags.integer("--num-workers", options.num_workers, 0, "threads that prepare batches ahead");
  flags.on("--pin-memory", options.pin_memory,
           "images stay in host memory, batches are page-locked: for a GPU");
}

void add_machine_flags(Flags& flags, RunOptions& options, std::string& gpu) {
  flags.text("--device", options.device, "DEVICE", "auto, cpu, cuda or cuda:N");
  flags.text("--gpu,--gpu-ids", gpu, "IDS", "GPUs this program may see, such as 0,1");
  flags.integer("--threads", options.threads, 0, "threads of this process; 0 = choose");
}

void add_output_flags(Flags& flags, RunOptions& options, const StageFlags& stage) {
  const std::string name = stage.amp
                               ? "ddp_checkpoint.safetensors"
                               : "mnist_cnn.safetensors; convnet: origin_checkpoint.safetensors";
  flags.optional_path("--save", options.save, "write the weights as safetensors [" + name + "]");
  flags.text("--load", options.load, "PATH", "start from the weights in a file");
  flags.text("--metrics", options.record.metrics, "PATH", "write a record as JSON lines");
  flags.integer("--fingerprint", options.record.fingerprint, 0,
                "hash every N-th step into PATH.rank0.jsonl beside --metrics; 0 = never");
  flags.text("--trace", options.record.trace, "PATH",
             "record steps 4 to 8 as a Chrome trace, for ui.perfetto.dev");
  flags.on("--quiet", options.record.quiet, "print only the results");
}

void add_device_ids_flags(Flags& flags, RunOptions& options, std::string& device_ids) {
  flags.text("--device-ids", device_ids, "DEVICES",
             "of the replicas: 0,1 or cpu,cpu [all GPUs, else cpu,cpu]");
  flags.text("--output-device", options.output_device, "DEVICE",
             "where outputs are gathered [the first of --device-ids]");
}

void add_batch_mode_flag(Flags& flags, RunOptions& options) {
  flags.choice(
      "--batch-mode", {"global", "per-device"},
      [&options](const std::string& value) {
        options.batch_mode = value == "global" ? BatchMode::kGlobal : BatchMode::kPerDevice;
      },
      "global", "is --batch-size that of all ranks together, or of each?");
}

void add_distributed_flags(Flags& flags, RunOptions& options, const StageFlags& stage,
                           std::int64_t& timeout_seconds) {
  flags.choice(
      "--backend", {"auto", "gloo", "nccl", "shm"},
      [&options](const std::string& value) { options.process_group.backend = value; }, "auto",
      "who carries the gradients; auto: nccl with a GPU a rank, shm on one machine");
  flags.integer("--timeout", timeout_seconds, 1, "seconds that a rank waits for the others");
  if (!stage.accelerator) add_batch_mode_flag(flags, options);
  flags.choice(
      "--scale-lr", {"none", "linear", "sqrt"},
      [&options](const std::string& value) {
        if (value == "linear") options.recipe.scale_lr = LrScaling::kLinear;
        if (value == "sqrt") options.recipe.scale_lr = LrScaling::kSqrt;
      },
      "none", "raise the learning rate with the ranks, for per-device");
  flags.integer("--check-replicas", options.check_replicas, 0,
                "compare the weights of all ranks every N steps; 0 = never");
}

// Instead of --batch-mode: what a prepared loader does with its batches.
void add_loader_flags(Flags& flags, RunOptions& options) {
  auto& loader = options.accelerator.data_loader;
  flags.choice(
      "--loader-mode", {"global", "per-process", "split-batches"},
      [&options, &loader](const std::string& value) {
        if (value == "per-process") {
          loader.mode = LoaderMode::kPerProcess;
          options.batch_mode = BatchMode::kPerDevice;
        } else {
          loader.mode = value == "global" ? LoaderMode::kGlobal : LoaderMode::kSplitBatches;
        }
      },
      "global", "divide each batch, deal whole batches, or divide as Accelerate does");
  flags.on_or_off("even-batches", loader.even_batches,
                  "repeat samples in the last round, in the modes of Accelerate [yes]");
  flags.on("--dispatch-batches", loader.dispatch_batches,
           "only the main process reads, and sends the others their parts");
}

// What flags of the Accelerator say, as written.
struct AcceleratorTexts {
  std::string hparams;
  std::string checkpointing_steps;
  std::string log_with;
  std::optional<int> total_limit;
  bool debug = false;
};

void add_checkpoint_flags(Flags& flags, RunOptions& options, AcceleratorTexts& texts) {
  auto& project = options.accelerator.project;
  flags.text("--project-dir", project.project_dir, "FOLDER",
             "where checkpoints/checkpoint_N and the trackers' files go");
  flags.text("--checkpointing-steps", texts.checkpointing_steps, "N|epoch",
             "write a checkpoint every N steps, or after each epoch");
  flags.optional_integer("--total-limit", texts.total_limit,
                         "checkpoints to keep; the oldest go first [all]");
  flags.optional_path("--resume,--resume-from-checkpoint", options.resume_from,
                      "go on from a checkpoint [the last in --project-dir]");
  flags.optional_integer("--scheduler-steps-per-call", options.accelerator.scheduler_steps_per_call,
                         "of --scheduler, at each epoch [as Accelerate: 1, per-process: nprocs]");
  flags.text("--log-with", texts.log_with, "NAMES", "trackers: jsonl,csv,tensorboard, or all");
}

void add_config_file_flag(Flags& flags, RunOptions& options) {
  flags.text("--config-file", options.accelerator.config_file, "PATH",
             "read what `accelerate config` wrote");
}

void add_accelerator_flags(Flags& flags, RunOptions& options, AcceleratorTexts& texts) {
  auto& accelerator = options.accelerator;
  flags.choice(
      "--mixed-precision,--precision", {"auto", "no", "fp32", "bf16", "fp16"},
      [&accelerator](const std::string& value) {
        if (value == "no" || value == "fp32") accelerator.mixed_precision = Precision::kFp32;
        if (value == "bf16") accelerator.mixed_precision = Precision::kBf16;
        if (value == "fp16") accelerator.mixed_precision = Precision::kFp16;
      },
      "auto", "auto: as the launcher or --config-file says, else no");
  flags.optional_integer("--gradient-accumulation-steps",
                         accelerator.gradient_accumulation.num_steps,
                         "batches a step of the optimizer [1]");
  flags.on("--cpu", accelerator.cpu, "the CPU, although there are GPUs");
  flags.on("--debug", texts.debug, "check shapes before collectives; slower");
  add_config_file_flag(flags, options);
  add_loader_flags(flags, options);
  add_checkpoint_flags(flags, options, texts);
  flags.text("--hparams", texts.hparams, "PATH",
             "flags of this list, from YAML: a NAME: VALUE each");
}

// Flags that the command line holds count before those of the file.
void apply_hparams(Flags& flags, const std::string& path) {
  if (path.empty()) return;
  for (const auto& [name, value] : read_hparams(path)) {
    const std::string flag = "--" + name;
    const auto where = fmt::format("{}: {}", path, name);
    if (!flags.knows(flag)) throw flags.unknown_flag(where, flag);
    if (flag == "--hparams" || flag == "--help" || flag == "--version" || flag == "--resume") {
      throw UsageError::conflict(where, "is for the command line alone",
                                 "leave it out of the file");
    }
    try {
      flags.preset(flag, value, where);
    } catch (const UsageError& error) {
      if (std::string_view(error.what()).starts_with(path)) throw;
      throw UsageError::conflict(path, error.what(), "");
    } catch (const CLI::Error&) {
      throw UsageError::malformed(where, "a value that the flag takes", value);
    }
  }
}

void add_spawn_flags(Flags& flags, RunOptions& options, const StageFlags& stage) {
  flags.integer("--nprocs,--num-processes", options.nprocs, 0,
                stage.accelerator || stage.trainer
                    ? "processes to start; 0 = as --config-file says, else 1"
                    : "processes to start; 0 = one a GPU, else 2");
  flags.integer("--master-port", options.master_port, 0, "where they meet; 0 = a free port");
}

void add_launcher_flags(Flags& flags, RunOptions& options) {
  flags.text("--init-method", options.process_group.init_method, "URL",
             "where the ranks meet: env://, tcp://HOST:PORT, file:///PATH");
  flags.optional_integer("--rank", options.process_group.rank, "of this process [as launched]");
  flags.optional_integer("--world-size", options.process_group.world_size,
                         "number of processes [as launched]");
}

void add_mixed_precision_flags(Flags& flags, RunOptions& options, std::string& profile) {
  flags.choice(
      "--precision", {"auto", "fp32", "bf16", "fp16"},
      [&options](const std::string& value) {
        if (value == "fp32") options.precision = Precision::kFp32;
        if (value == "bf16") options.precision = Precision::kBf16;
        if (value == "fp16") options.precision = Precision::kFp16;
      },
      "auto", "of convolutions and matrix products; auto: bf16 on the CPU, fp16 on a GPU");
  flags.on_or_off("sync-bn", options.sync_bn, "one BatchNorm over the batches of all ranks [yes]");
  flags.choice(
      "--profile", {"none", "ddp-practice"},
      [&profile](const std::string& value) { profile = value; }, profile,
      "the tutorial's run: convnet, 3 epochs, batch 32 per device, lr 1e-4");
}

constexpr const char* kProfile = "--profile";

// Flags that the command line holds count before those of a profile.
void apply_profile(Flags& flags, const std::string& profile) {
  if (profile != "ddp-practice") return;
  flags.preset("--recipe", "convnet", kProfile);
  flags.preset("--epochs", "3", kProfile);
  flags.preset("--batch-size", "32", kProfile);
  flags.preset("--lr", "1e-4", kProfile);
  flags.preset("--batch-mode", "per-device", kProfile);
}

std::string default_save_path(const RunOptions& options, const StageFlags& stage) {
  if (stage.amp) return "ddp_checkpoint.safetensors";
  return options.recipe.name == "convnet" ? "origin_checkpoint.safetensors"
                                          : "mnist_cnn.safetensors";
}

std::vector<std::string> parse_devices(const std::string& list) {
  std::vector<std::string> devices;
  if (list.empty()) return devices;
  if (list.back() == ',') throw UsageError::malformed("--device-ids", "as 0,1 or cpu,cpu", list);
  for (const auto& item : CLI::detail::split(list, ',')) {
    devices.push_back(CLI::detail::trim_copy(item));
    if (devices.back().empty())
      throw UsageError::malformed("--device-ids", "as 0,1 or cpu,cpu", list);
  }
  return devices;
}

constexpr std::int64_t kLongestTimeout = 604'800;

std::chrono::seconds checked_timeout(std::int64_t seconds) {
  if (seconds > kLongestTimeout) {
    throw UsageError::out_of_range("--timeout", seconds, "1 to 604800, a week in seconds");
  }
  return std::chrono::seconds(seconds);
}

void complete_save_path(RunOptions& options, const StageFlags& stage, bool given) {
  if (given && options.save.empty()) options.save = default_save_path(options, stage);
  if (options.save.empty()) return;
  require_writable_folder("--save", options.save);
  if (options.save == options.record.metrics) {
    throw UsageError::conflict("--save", "names the same file as --metrics", "name two files");
  }
}

// As a person types it who has run ./run.
std::string torchrun_here() {
  const std::string own = ".venv/bin/torchrun";
  return std::filesystem::exists(own) ? own : "torchrun";
}

void check_together(const RunOptions& options, const StageFlags& stage) {
  if (options.recipe.scale_lr != LrScaling::kNone && options.batch_mode == BatchMode::kGlobal) {
    throw UsageError::conflict(
        "--scale-lr", "in global mode the batch does not grow with the ranks",
        fmt::format("add {}, or leave --scale-lr out",
                    stage.accelerator ? "--loader-mode per-process" : "--batch-mode per-device"));
  }
  if (!options.device_ids.empty() && options.device != "auto") {
    throw UsageError::conflict("--device-ids", "--device names devices already",
                               "give one of them");
  }
}

std::vector<std::string> parse_gpus(const std::string& list) {
  std::vector<std::string> gpus;
  if (list.empty()) return gpus;
  for (const auto& item : CLI::detail::split(list, ',')) {
    const auto id = parse_number<unsigned>("--gpu", CLI::detail::trim_copy(item),
                                           "numbers separated by commas, as 0,1");
    gpus.push_back(fmt::format("{}", id));
  }
  return gpus;
}

std::string version_text(const std::string& program) {
  std::string text = program + "\n";
  auto versions = library_versions();
  versions.emplace_back("cli11", CLI11_VERSION);
  for (const auto& [name, version] : versions) text += fmt::format("  {:<14} {}\n", name, version);
  return text;
}

std::vector<std::string> parse_names(const std::string& list) {
  std::vector<std::string> names;
  for (const auto& item : CLI::detail::split(list, ',')) {
    if (!item.empty()) names.push_back(CLI::detail::trim_copy(item));
  }
  if (names.empty() && !list.empty()) {
    throw UsageError::malformed("--log-with", "names separated by commas", list);
  }
  return names;
}

void require_project(const RunOptions& options, const AcceleratorTexts& texts) {
  if (options.resume && !options.load.empty()) {
    throw UsageError::conflict("--load", "--resume takes the weights from its checkpoint",
                               "give one of them");
  }
  if (texts.total_limit && texts.checkpointing_steps.empty()) {
    throw UsageError::missing("--total-limit", "--checkpointing-steps", "say when to write one");
  }
  if (!options.accelerator.project.project_dir.empty()) return;
  const auto missing = [](const char* flag) {
    return UsageError::missing(flag, "--project-dir FOLDER, where its files go",
                               "add --project-dir runs/mnist");
  };
  if (!texts.checkpointing_steps.empty()) throw missing("--checkpointing-steps");
  if (!texts.log_with.empty()) throw missing("--log-with");
  if (options.resume && options.resume_from.empty()) throw missing("--resume");
}

void take_checkpoint_flags(RunOptions& options, const AcceleratorTexts& texts) {
  const auto& steps = texts.checkpointing_steps;
  options.checkpoint_epochs = steps == "epoch";
  if (!steps.empty() && !options.checkpoint_epochs) {
    options.checkpointing_steps =
        parse_number<std::int64_t>("--checkpointing-steps", steps, "a whole number, or \"epoch\"");
    if (options.checkpointing_steps < 1) {
      throw UsageError::out_of_range("--checkpointing-steps", options.checkpointing_steps,
                                     "a number >= 1");
    }
  }
  if (texts.total_limit == 0) {
    throw UsageError::out_of_range("--total-limit", 0, "a number >= 1");
  }
  if (texts.total_limit) {
    options.accelerator.project.total_limit = static_cast<std::size_t>(*texts.total_limit);
  }
}

// What the Accelerator takes from flags that other stages have too.
void complete_accelerator(RunOptions& options) {
  auto& accelerator = options.accelerator;
  accelerator.device = options.device;
  accelerator.threads = options.threads;
  accelerator.quiet = options.record.quiet;
  accelerator.process_group = options.process_group;
}

void take_accelerator_texts(RunOptions& options, const AcceleratorTexts& texts) {
  auto& accelerator = options.accelerator;
  if (texts.debug) accelerator.debug = true;
  accelerator.log_with = parse_names(texts.log_with);
  take_checkpoint_flags(options, texts);
  require_project(options, texts);
}

// What flags say, as written.
struct CommandTexts {
  std::string gpu;
  std::string device_ids;
  std::string profile = "none";
  std::int64_t timeout_seconds = 0;
  bool version = false;
  AcceleratorTexts accelerator;
  TrainerTexts trainer;
};

void add_flags(Flags& flags, RunOptions& options, const StageFlags& stage, CommandTexts& texts) {
  add_recipe_flags(flags, options.recipe, stage);
  add_data_flags(flags, options, stage);
  add_machine_flags(flags, options, texts.gpu);
  add_output_flags(flags, options, stage);
  if (stage.device_ids) add_device_ids_flags(flags, options, texts.device_ids);
  if (stage.distributed) add_distributed_flags(flags, options, stage, texts.timeout_seconds);
  if (stage.spawn) add_spawn_flags(flags, options, stage);
  if (stage.launcher) add_launcher_flags(flags, options);
  if (stage.amp) add_mixed_precision_flags(flags, options, texts.profile);
  if (stage.accelerator) add_accelerator_flags(flags, options, texts.accelerator);
  if (stage.trainer) {
    add_config_file_flag(flags, options);
    add_trainer_flags(flags, options, texts.trainer);
  }
  flags.app().add_flag("--version", texts.version, "print the versions of all libraries");
}

void parse(Flags& flags, int argc, const char* const* argv, const StageFlags& stage,
           RunOptions& options, const CommandTexts& texts) {
  flags.parse(argc, argv);
  if (stage.amp) apply_profile(flags, texts.profile);
  apply_hparams(flags, texts.accelerator.hparams);
  if (stage.trainer && !texts.version) apply_trainer_presets(flags, options, texts.trainer);
}

void complete(RunOptions& options, const Flags& flags, const StageFlags& stage,
              const CommandTexts& texts) {
  options.gpu = parse_gpus(texts.gpu);
  options.device_ids = parse_devices(texts.device_ids);
  options.process_group.timeout = checked_timeout(texts.timeout_seconds);
  options.process_group.require_launcher = stage.launcher && !stage.spawn;
  options.process_group.torchrun = torchrun_here();
  if (stage.trainer) complete_trainer(options);
  if (stage.accelerator || stage.trainer) complete_accelerator(options);
  if (stage.accelerator) {
    options.resume = flags.given("--resume");
    take_accelerator_texts(options, texts.accelerator);
  }
  check_together(options, stage);
  complete_save_path(options, stage, flags.given("--save"));
  if (!options.record.trace.empty()) require_writable_folder("--trace", options.record.trace);
  options.record.flags = flags.values();
}

}  // namespace

CommandLine parse_command_line(int argc, const char* const* argv, const StageFlags& stage) {
  RunOptions options;
  options.record.stage = std::filesystem::path(argv[0]).filename().string();
  options.data_root = LADDER_DATA_ROOT;
  options.process_group.program = argv[0];
  CommandTexts texts;
  texts.timeout_seconds = options.process_group.timeout.count() / 1000;
  Flags flags(options.record.stage);
  add_flags(flags, options, stage, texts);
  try {
    parse(flags, argc, argv, stage, options, texts);
  } catch (const CLI::CallForHelp&) {
    return {std::nullopt, flags.app().help()};
  } catch (const CLI::ParseError& error) {
    throw UsageError::conflict(options.record.stage, error.what(), "--help lists all flags");
  }
  if (texts.version) return {std::nullopt, version_text(options.record.stage)};
  complete(options, flags, stage, texts);
  return {options, ""};
}

}  // namespace ladder
