// SPDX-License-Identifier: Apache-2.0
#include "mnist/command_line.h"

#include <fmt/core.h>
#include <zlib.h>

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
#include "mnist/flags.h"
#include "mnist/hparams.h"
#include "mnist/trainer_flags.h"

namespace mnist {
namespace {

using namespace ladder;

void add_training_flags(Flags& flags, RecipeOptions& recipe) {
  flags.integer("-e,--epochs", recipe.epochs, "epochs to train [1; convnet: 3]");
  flags.integer("-b,--batch-size", recipe.batch_size, "images per step [64; convnet: 32]");
  flags.integer("--eval-batch-size", recipe.eval_batch_size,
                "images per evaluation step [64; convnet: 32]");
  flags.number("--lr", recipe.lr, "learning rate [1e-3; convnet: 1e-4]");
}

void add_network_flags(Flags& flags, RecipeOptions& recipe) {
  flags.choice(
      "--head", {"log-softmax", "logits"},
      [&recipe](const std::string& value) { recipe.head = value; }, "recipe",
      "output of the network [log-softmax; convnet: logits]");
  flags.integer("--width", recipe.width, 1, "channel multiplier");
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

void add_recipe_name(Flags& flags, RecipeOptions& recipe) {
  flags.choice(
      "--recipe", {"basicnet", "convnet"},
      [&recipe](const std::string& value) { recipe.name = value; }, recipe.name,
      "network, loss, optimizer and their defaults");
}

void add_recipe_flags(Flags& flags, RecipeOptions& recipe) {
  add_recipe_name(flags, recipe);
  add_training_flags(flags, recipe);
  add_network_flags(flags, recipe);
  flags.choice(
      "--scheduler", {"none", "step"},
      [&recipe](const std::string& value) { recipe.scheduler = value; }, recipe.scheduler,
      "learning-rate schedule; step: a tenth every 30 epochs");
  flags.integer("--seed", recipe.seed, 0, "seed for weights, shuffling, dropout, augmentation");
}

void add_data_flags(Flags& flags, DataOptions& data) {
  flags.text("--data-root", data.root, "FOLDER", "folder of the MNIST files");
  flags.integer("--limit-train", data.limit_train, 0, "use only the first N images; 0 = all");
  flags.integer("--limit-test", data.limit_test, 0, "test on the first N images; 0 = all");
  flags.choice(
      "--augment", {"none", "shift"},
      [&data](const std::string& value) { data.augment = value == "shift"; }, "none",
      "move each training image by up to 2 pixels at random");
}

void add_loading_flags(Flags& flags, DataOptions& data) {
  flags.integer("--num-workers", data.num_workers, 0, "threads that prepare batches ahead");
  flags.on("--pin-memory", data.pin_memory,
           "images stay in host memory, batches are page-locked: for a GPU");
}

void add_machine_flags(Flags& flags, SingleOptions& options, std::string& gpu) {
  flags.text("--device", options.device, "DEVICE", "auto, cpu, cuda or cuda:N");
  flags.text("--gpu,--gpu-ids", gpu, "IDS", "GPUs this program may see, such as 0,1");
  flags.integer("--threads", options.threads, 0, "threads of this process; 0 = choose");
}

constexpr const char* kAmpSavePath = "ddp_checkpoint.safetensors";

void add_output_flags(Flags& flags, SingleOptions& options,
                      const std::string& default_save_path =
                          "mnist_cnn.safetensors; convnet: origin_checkpoint.safetensors") {
  flags.optional_path("--save", options.save,
                      "write the weights as safetensors [" + default_save_path + "]");
  flags.text("--load", options.load, "PATH", "start from the weights in a file");
  flags.text("--metrics", options.record.metrics, "PATH", "write a record as JSON lines");
  flags.integer("--fingerprint", options.monitor.fingerprint, 0,
                "hash every N-th step into PATH.rank0.jsonl beside --metrics; 0 = never");
  flags.text("--trace", options.monitor.trace, "PATH",
             "record steps 4 to 8 as a Chrome trace, for ui.perfetto.dev");
  flags.on("--quiet", options.record.quiet, "print only the results");
}

void add_device_ids_flags(Flags& flags, ReplicaOptions& options, std::string& device_ids) {
  flags.text("--device-ids", device_ids, "DEVICES",
             "of the replicas: 0,1 or cpu,cpu [all GPUs, else cpu,cpu]");
  flags.text("--output-device", options.output_device, "DEVICE",
             "where outputs are gathered [the first of --device-ids]");
}

void add_batch_mode_flag(Flags& flags, RankOptions& options) {
  flags.choice(
      "--batch-mode", {"global", "per-device"},
      [&options](const std::string& value) {
        options.batch_mode = value == "global" ? BatchMode::kGlobal : BatchMode::kPerDevice;
      },
      "global", "--batch-size counts the images of all ranks, or of each rank");
}

void add_group_flags(Flags& flags, GroupOptions& options, std::int64_t& timeout_seconds) {
  flags.choice(
      "--backend", {"auto", "gloo", "nccl", "shm"},
      [&options](const std::string& value) { options.process_group.backend = value; }, "auto",
      "communication backend; auto: nccl with one GPU per rank, shm on one machine");
  flags.integer("--timeout", timeout_seconds, 1, "seconds that a rank waits for the others");
}

void add_rank_flags(Flags& flags, RecipeOptions& recipe, std::int64_t& check_replicas) {
  flags.choice(
      "--scale-lr", {"none", "linear", "sqrt"},
      [&recipe](const std::string& value) {
        if (value == "linear") recipe.scale_lr = LrScaling::kLinear;
        if (value == "sqrt") recipe.scale_lr = LrScaling::kSqrt;
      },
      "none", "raise the learning rate with the ranks, for per-device");
  flags.integer("--check-replicas", check_replicas, 0,
                "compare the weights of all ranks every N steps; 0 = never");
}

// Instead of --batch-mode: how a prepared loader divides its batches.
void add_loader_flags(Flags& flags, DataLoaderConfiguration& loader) {
  flags.choice(
      "--loader-mode", {"global", "per-process", "split-batches"},
      [&loader](const std::string& value) {
        if (value == "global") loader.mode = LoaderMode::kGlobal;
        if (value == "per-process") loader.mode = LoaderMode::kPerProcess;
        if (value == "split-batches") loader.mode = LoaderMode::kSplitBatches;
      },
      "global", "divide each batch, deal whole batches, or divide as Accelerate does");
  flags.on_or_off("even-batches", loader.even_batches,
                  "repeat samples in the last round, in the modes of Accelerate [yes]");
  flags.on("--dispatch-batches", loader.dispatch_batches,
           "only the main process reads, and sends the others their parts");
}

// Values of the Accelerator's flags, as written.
struct AcceleratorTexts {
  std::string hparams;
  std::string checkpointing_steps;
  std::string log_with;
  std::optional<int> total_limit;
  bool debug = false;
};

void add_checkpoint_flags(Flags& flags, AcceleratedOptions& options, AcceleratorTexts& texts) {
  auto& project = options.accelerator.project;
  flags.text("--project-dir", project.project_dir, "FOLDER",
             "where checkpoints/checkpoint_N and the trackers' files go");
  flags.text("--checkpointing-steps", texts.checkpointing_steps, "N|epoch",
             "write a checkpoint every N steps, or after each epoch");
  flags.optional_integer("--total-limit", texts.total_limit,
                         "checkpoints to keep; the oldest go first [all]");
  flags.optional_path("--resume,--resume-from-checkpoint", options.resume_from,
                      "resume from a checkpoint [the last in --project-dir]");
  flags.optional_integer("--scheduler-steps-per-call", options.accelerator.scheduler_steps_per_call,
                         "scheduler steps per step() call [as Accelerate: 1, per-process: nprocs]");
  flags.text("--log-with", texts.log_with, "NAMES", "trackers: jsonl,csv,tensorboard, or all");
}

void add_config_file_flag(Flags& flags, AcceleratorOptions& accelerator) {
  flags.text("--config-file", accelerator.config_file, "PATH",
             "configuration written by `accelerate config`");
}

void add_accelerator_flags(Flags& flags, AcceleratedOptions& options, AcceleratorTexts& texts) {
  auto& accelerator = options.accelerator;
  flags.choice(
      "--mixed-precision,--precision", {"auto", "no", "fp32", "bf16", "fp16"},
      [&accelerator](const std::string& value) {
        if (value == "no" || value == "fp32") accelerator.mixed_precision = Precision::kFp32;
        if (value == "bf16") accelerator.mixed_precision = Precision::kBf16;
        if (value == "fp16") accelerator.mixed_precision = Precision::kFp16;
      },
      "auto", "auto: as set by the launcher or --config-file, else no");
  flags.optional_integer("--gradient-accumulation-steps",
                         accelerator.gradient_accumulation.num_steps,
                         "batches per optimizer step [1]");
  flags.on("--cpu", accelerator.cpu, "use the CPU even if GPUs are present");
  flags.on("--debug", texts.debug, "check shapes before collectives; slower");
  add_config_file_flag(flags, accelerator);
  add_loader_flags(flags, accelerator.data_loader);
  add_checkpoint_flags(flags, options, texts);
  flags.text("--hparams", texts.hparams, "PATH",
             "flags of this list, from YAML: one NAME: VALUE per line");
}

// Flags of the command line take precedence over those of the file.
void apply_hparams(Flags& flags, const std::string& path) {
  if (path.empty()) return;
  for (const auto& [name, value] : read_hparams(path)) {
    const std::string flag = "--" + name;
    const auto where = fmt::format("{}: {}", path, name);
    if (!flags.has(flag)) throw flags.unknown_flag(where, flag);
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

void add_process_flags(Flags& flags, ProcessOptions& options, const std::string& help) {
  flags.integer("--nprocs,--num-processes", options.nprocs, 0, help);
  flags.integer("--master-port", options.master_port, 0, "rendezvous port; 0 picks a free one");
}
constexpr const char* kOnePerGpu = "processes to start; 0 = one per GPU, else 2";
constexpr const char* kAsConfigured = "processes to start; 0 = as in --config-file, else 1";

void add_launcher_flags(Flags& flags, GroupOptions& options) {
  flags.text("--init-method", options.process_group.init_method, "URL",
             "rendezvous of the ranks: env://, tcp://HOST:PORT, file:///PATH");
  flags.optional_integer("--rank", options.process_group.rank,
                         "rank of this process [as launched]");
  flags.optional_integer("--world-size", options.process_group.world_size,
                         "number of processes [as launched]");
}

void add_mixed_precision_flags(Flags& flags, AmpOptions& options, std::string& profile) {
  flags.choice(
      "--precision", {"auto", "fp32", "bf16", "fp16"},
      [&options](const std::string& value) {
        if (value == "fp32") options.precision = Precision::kFp32;
        if (value == "bf16") options.precision = Precision::kBf16;
        if (value == "fp16") options.precision = Precision::kFp16;
      },
      "auto",
      "precision of convolutions and matrix products; auto: bf16 on the CPU, fp16 on a GPU");
  flags.on_or_off("sync-bn", options.sync_bn, "one BatchNorm over the batches of all ranks [yes]");
  flags.choice(
      "--profile", {"none", "ddp-practice"},
      [&profile](const std::string& value) { profile = value; }, profile,
      "the tutorial's run: convnet, 3 epochs, batch 32 per device, lr 1e-4");
}

constexpr const char* kProfile = "--profile";

// Flags of the command line take precedence over those of a profile.
void apply_profile(Flags& flags, const std::string& profile) {
  if (profile != "ddp-practice") return;
  flags.preset("--recipe", "convnet", kProfile);
  flags.preset("--epochs", "3", kProfile);
  flags.preset("--batch-size", "32", kProfile);
  flags.preset("--lr", "1e-4", kProfile);
  flags.preset("--batch-mode", "per-device", kProfile);
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

void complete_save_path(SingleOptions& options, bool given, const std::string& default_path = "") {
  const bool is_convnet = options.recipe.name == "convnet";
  const std::string path = !default_path.empty() ? default_path
                           : is_convnet          ? "origin_checkpoint.safetensors"
                                                 : "mnist_cnn.safetensors";
  if (given && options.save.empty()) options.save = path;
  if (options.save.empty()) return;
  require_writable_folder("--save", options.save);
  if (options.save == options.record.metrics) {
    throw UsageError::conflict("--save", "names the same file as --metrics", "name two files");
  }
}

// As typed after ./run has made .venv.
std::string torchrun_here() {
  const std::string own = ".venv/bin/torchrun";
  return std::filesystem::exists(own) ? own : "torchrun";
}

// Unless the batch `grows` with the ranks, there is no reason to scale the learning rate.
void require_growing_batch(const RecipeOptions& recipe, bool grows, const std::string& flag) {
  if (recipe.scale_lr == LrScaling::kNone || grows) return;
  throw UsageError::conflict("--scale-lr", "in global mode the batch does not grow with the ranks",
                             fmt::format("add {}, or leave --scale-lr out", flag));
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

// Of the libraries that the application uses beside those of ladder.
std::vector<std::pair<std::string, std::string>> own_versions() {
  return {{"zlib", zlibVersion()}, {"cli11", CLI11_VERSION}};
}

std::string version_text(const std::string& program) {
  std::string text = program + "\n";
  auto versions = library_versions();
  for (auto& version : own_versions()) versions.push_back(std::move(version));
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

void require_project(const AcceleratedOptions& options, const AcceleratorTexts& texts) {
  if (options.resume && !options.load.empty()) {
    throw UsageError::conflict("--load", "--resume loads the weights of its checkpoint",
                               "give one of them");
  }
  if (texts.total_limit && texts.checkpointing_steps.empty()) {
    throw UsageError::missing("--total-limit", "--checkpointing-steps", "choose when to write one");
  }
  if (!options.accelerator.project.project_dir.empty()) return;
  const auto missing = [](const char* flag) {
    return UsageError::missing(flag, "--project-dir FOLDER, the place of its files",
                               "add --project-dir runs/mnist");
  };
  if (!texts.checkpointing_steps.empty()) throw missing("--checkpointing-steps");
  if (!texts.log_with.empty()) throw missing("--log-with");
  if (options.resume && options.resume_from.empty()) throw missing("--resume");
}

void take_checkpoint_flags(AcceleratedOptions& options, const AcceleratorTexts& texts) {
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

// The Accelerator's part of flags that other stages have too.
void complete_accelerator(AcceleratorOptions& accelerator, const GroupOptions& options) {
  accelerator.device = options.device;
  accelerator.threads = options.threads;
  accelerator.quiet = options.record.quiet;
  accelerator.process_group = options.process_group;
}

// Values of flags, as written.
struct CommandTexts {
  std::string gpu;
  std::string device_ids;
  std::string profile = "none";
  std::int64_t timeout_seconds = 0;
  bool version = false;
  AcceleratorTexts accelerator;
  TrainerTexts trainer;
};

// The flags of each stage, in the order of --help.

void add_flags(Flags& flags, SingleOptions& options, CommandTexts& texts) {
  add_recipe_flags(flags, options.recipe);
  add_data_flags(flags, options.data);
  add_loading_flags(flags, options.data);
  add_machine_flags(flags, options, texts.gpu);
  add_output_flags(flags, options);
}

void add_flags(Flags& flags, ReplicaOptions& options, CommandTexts& texts) {
  add_flags(flags, static_cast<SingleOptions&>(options), texts);
  add_device_ids_flags(flags, options, texts.device_ids);
}

void add_flags(Flags& flags, RankOptions& options, CommandTexts& texts) {
  add_flags(flags, static_cast<SingleOptions&>(options), texts);
  add_group_flags(flags, options, texts.timeout_seconds);
  add_batch_mode_flag(flags, options);
  add_rank_flags(flags, options.recipe, options.check_replicas);
}

void add_flags(Flags& flags, SpawnedOptions& options, CommandTexts& texts) {
  add_flags(flags, static_cast<RankOptions&>(options), texts);
  add_process_flags(flags, options, kOnePerGpu);
}

void add_flags(Flags& flags, LaunchedOptions& options, CommandTexts& texts) {
  add_flags(flags, static_cast<RankOptions&>(options), texts);
  add_launcher_flags(flags, options);
}

void add_flags(Flags& flags, AmpOptions& options, CommandTexts& texts) {
  add_recipe_flags(flags, options.recipe);
  add_data_flags(flags, options.data);
  add_loading_flags(flags, options.data);
  add_machine_flags(flags, options, texts.gpu);
  add_output_flags(flags, options, kAmpSavePath);
  add_group_flags(flags, options, texts.timeout_seconds);
  add_batch_mode_flag(flags, options);
  add_rank_flags(flags, options.recipe, options.check_replicas);
  add_process_flags(flags, options, kOnePerGpu);
  add_launcher_flags(flags, options);
  add_mixed_precision_flags(flags, options, texts.profile);
}

void add_flags(Flags& flags, AcceleratedOptions& options, CommandTexts& texts) {
  add_flags(flags, static_cast<SingleOptions&>(options), texts);
  add_group_flags(flags, options, texts.timeout_seconds);
  add_rank_flags(flags, options.recipe, options.check_replicas);
  add_process_flags(flags, options, kAsConfigured);
  add_launcher_flags(flags, options);
  add_accelerator_flags(flags, options, texts.accelerator);
}

// The training arguments replace most of the recipe.
void add_flags(Flags& flags, TrainerRunOptions& options, CommandTexts& texts) {
  add_recipe_name(flags, options.recipe);
  add_network_flags(flags, options.recipe);
  add_data_flags(flags, options.data);
  add_machine_flags(flags, options, texts.gpu);
  add_output_flags(flags, options);
  add_process_flags(flags, options, kAsConfigured);
  add_launcher_flags(flags, options);
  add_config_file_flag(flags, options.accelerator);
  add_trainer_flags(flags, options, texts.trainer);
}

// Flags that stand for others: profiles and files.

void apply_presets(Flags& /*flags*/, SingleOptions& /*options*/, const CommandTexts& /*texts*/) {}

void apply_presets(Flags& flags, AmpOptions& /*options*/, const CommandTexts& texts) {
  apply_profile(flags, texts.profile);
}

void apply_presets(Flags& flags, AcceleratedOptions& /*options*/, const CommandTexts& texts) {
  apply_hparams(flags, texts.accelerator.hparams);
}

void apply_presets(Flags& flags, TrainerRunOptions& options, const CommandTexts& texts) {
  if (!texts.version) apply_trainer_presets(flags, options, texts.trainer);
}

// Checks flags against each other, and fills in what follows from them.

void complete_monitor(SingleOptions& options) {
  auto& monitor = options.monitor;
  monitor.quiet = options.record.quiet;
  monitor.fingerprint_beside = options.record.metrics;
  if (options.recipe.name == "convnet") {  // the lines of the DDP-practice tutorial
    monitor.epoch_line = "begin training of epoch {epoch}/{epochs}";
    monitor.testing_line = "begin testing";
  }
  if (monitor.fingerprint != 0 && options.record.metrics.empty()) {
    throw UsageError::missing("--fingerprint", "--metrics PATH.jsonl, to write beside it",
                              "add --metrics run.jsonl: the fingerprint goes to run.rank0.jsonl");
  }
  if (!monitor.trace.empty()) require_writable_folder("--trace", monitor.trace);
}

void complete_all(SingleOptions& options, const Flags& flags, const CommandTexts& texts,
                  const std::string& default_save_path = "") {
  options.gpu = parse_gpus(texts.gpu);
  complete_save_path(options, flags.given("--save"), default_save_path);
  complete_monitor(options);
  options.record.flags = flags.values();
  options.record.versions = own_versions();
}

void complete(SingleOptions& options, const Flags& flags, const CommandTexts& texts) {
  complete_all(options, flags, texts);
}

void complete(ReplicaOptions& options, const Flags& flags, const CommandTexts& texts) {
  options.device_ids = parse_devices(texts.device_ids);
  if (!options.device_ids.empty() && options.device != "auto") {
    throw UsageError::conflict("--device-ids", "--device names devices already",
                               "give one of them");
  }
  complete_all(options, flags, texts);
}

void complete_group(GroupOptions& options, const CommandTexts& texts, bool require_launcher) {
  options.process_group.timeout = checked_timeout(texts.timeout_seconds);
  options.process_group.require_launcher = require_launcher;
  options.process_group.torchrun = torchrun_here();
}

void complete(SpawnedOptions& options, const Flags& flags, const CommandTexts& texts) {
  complete_group(options, texts, /*require_launcher=*/false);
  require_growing_batch(options.recipe, options.batch_mode == BatchMode::kPerDevice,
                        "--batch-mode per-device");
  complete_all(options, flags, texts);
}

void complete(LaunchedOptions& options, const Flags& flags, const CommandTexts& texts) {
  complete_group(options, texts, /*require_launcher=*/true);
  require_growing_batch(options.recipe, options.batch_mode == BatchMode::kPerDevice,
                        "--batch-mode per-device");
  complete_all(options, flags, texts);
}

void complete(AmpOptions& options, const Flags& flags, const CommandTexts& texts) {
  complete_group(options, texts, /*require_launcher=*/false);
  require_growing_batch(options.recipe, options.batch_mode == BatchMode::kPerDevice,
                        "--batch-mode per-device");
  complete_all(options, flags, texts, kAmpSavePath);
}

void complete(AcceleratedOptions& options, const Flags& flags, const CommandTexts& texts) {
  auto& accelerator = options.accelerator;
  complete_group(options, texts, /*require_launcher=*/false);
  complete_accelerator(accelerator, options);
  options.resume = flags.given("--resume");
  if (texts.accelerator.debug) accelerator.debug = true;
  accelerator.log_with = parse_names(texts.accelerator.log_with);
  take_checkpoint_flags(options, texts.accelerator);
  require_project(options, texts.accelerator);
  require_growing_batch(options.recipe, accelerator.data_loader.mode == LoaderMode::kPerProcess,
                        "--loader-mode per-process");
  complete_all(options, flags, texts);
}

void complete(TrainerRunOptions& options, const Flags& flags, const CommandTexts& texts) {
  options.process_group.torchrun = torchrun_here();
  complete_trainer(options);
  complete_accelerator(options.accelerator, options);
  complete_all(options, flags, texts);
}

template <typename Options>
Options initial_options(const char* program, CommandTexts& texts) {
  Options options;
  options.record.stage = std::filesystem::path(program).filename().string();
  options.data.root = MNIST_DATA_ROOT;
  if constexpr (requires { options.process_group; }) {
    options.process_group.program = program;
    texts.timeout_seconds = options.process_group.timeout.count() / 1000;
  }
  return options;
}

}  // namespace

template <typename Options>
CommandLine<Options> parse_command_line(int argc, const char* const* argv) {
  CommandTexts texts;
  auto options = initial_options<Options>(argv[0], texts);
  Flags flags(options.record.stage);
  add_flags(flags, options, texts);
  flags.app().add_flag("--version", texts.version, "print the versions of all libraries");
  try {
    flags.parse(argc, argv);
    apply_presets(flags, options, texts);
  } catch (const CLI::CallForHelp&) {
    return {std::nullopt, flags.app().help()};
  } catch (const CLI::ParseError& error) {
    throw UsageError::conflict(options.record.stage, error.what(), "--help lists all flags");
  }
  if (texts.version) return {std::nullopt, version_text(options.record.stage)};
  complete(options, flags, texts);
  return {options, ""};
}

template CommandLine<SingleOptions> parse_command_line(int, const char* const*);
template CommandLine<ReplicaOptions> parse_command_line(int, const char* const*);
template CommandLine<SpawnedOptions> parse_command_line(int, const char* const*);
template CommandLine<LaunchedOptions> parse_command_line(int, const char* const*);
template CommandLine<AmpOptions> parse_command_line(int, const char* const*);
template CommandLine<AcceleratedOptions> parse_command_line(int, const char* const*);
template CommandLine<TrainerRunOptions> parse_command_line(int, const char* const*);

}  // namespace mnist
