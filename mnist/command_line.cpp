// SPDX-License-Identifier: Apache-2.0
#include "mnist/command_line.h"

#include <fmt/core.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "ladder/comm/backend_names.h"
#include "ladder/core/error.h"
#include "ladder/core/gpus.h"
#include "ladder/core/largest_counts.h"
#include "ladder/core/text.h"
#include "ladder/core/versions.h"
#include "ladder/io/atomic_file.h"
#include "ladder/io/regular_file.h"
#include "ladder/io/sha256.h"
#include "mnist/command_line_parts.h"
#include "mnist/flags.h"
#include "mnist/named_files.h"

namespace mnist {

using namespace ladder;
using enum Effect;

namespace {

// The names in a list "a, b". Throws UsageError with `form` as the expectation if one is empty.
std::vector<std::string> parse_list(const std::string& flag, const std::string& list,
                                    const char* form) {
  std::vector<std::string> names;
  for (const auto& item : split(list, ',')) {
    names.push_back(CLI::detail::trim_copy(item));
    if (names.back().empty())
      throw UsageError::malformed(flag, form, list, "separate them by single commas");
  }
  return names;
}

constexpr const char* kRecipe = "recipe";  // in the record: as the recipe has it

void add_training_flags(Flags& flags, RecipeOptions& recipe) {
  flags.integer(kTogether, "-e,--epochs", recipe.epochs, {0, kMostEpochs},
                "epochs to train [1; convnet: 3]", kRecipe);
  flags.integer(kTraining, "-b,--batch-size", recipe.batch_size, {1, kMostSamplesPerBatch},
                "images per step [64; convnet: 32]", kRecipe);
  flags.integer(kTogether, "--eval-batch-size", recipe.eval_batch_size, {1, kMostSamplesPerBatch},
                "images per evaluation step [64; convnet: 32]", kRecipe);
  flags.value(
      kOptimizer, "--lr", "X", "learning rate [1e-3; convnet: 1e-4]",
      [&recipe](const std::string& flag, const std::string& value) {
        recipe.lr = number_of<double>(flag, value, "a number");
      },
      [&recipe] { return shown(recipe.lr, kRecipe); }, kRecipe);
}

// "0,1", "0 1", or values that CLI11 has joined by line ends.
std::vector<std::string> parse_gpus(const std::string& flag, const std::string& list) {
  constexpr const char* kForm = "numbers separated by commas or spaces, as 0,1";
  std::vector<std::string> gpus;
  for (const auto& part : split(list, ',')) {
    std::istringstream words(part);
    std::string word;
    words >> word;
    do {
      const auto id = ladder::parse_number<unsigned>(word);
      if (!id)
        throw UsageError::malformed(flag, kForm, word.empty() ? list : word, "such as --gpu 0,1");
      gpus.push_back(fmt::format("{}", *id));
    } while (words >> word);
  }
  return gpus;
}

void add_sums_flags(Flags& flags, SumTexts& sums) {
  flags.choice(kWeights, "--sums", sums.exact, {{"fast", false}, {"exact", true}},
               "sums of gradients; exact: in integers, the same weights for any number of ranks");
  flags.integer(kWeights, "--micro-batch", sums.micro_batch, {1, kMostSamplesPerBatch},
                "images per micro-batch, with --sums exact");
}

constexpr const char* kOnePerGpu = "processes to start; 0 = one per GPU, else 2";

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

// The library would refuse it too, by the name of its field.
void require_gpu(const std::string& flag, const char* instead) {
  if (machine_gpu_count() > 0) return;
  throw UsageError::conflict(flag, no_gpu_reason(), instead);
}

constexpr const char* kConvert = ".venv/bin/python tools/convert_checkpoint.py";

// The library reads safetensors alone. torch.save writes a zip archive, and once wrote a pickle.
void check_weights(const std::string& path) {
  const auto file = open_regular_file(path);
  if (!file.problem.empty()) return;  // a stage that loads it reports that
  std::array<char, 4> magic{};
  if (read_at(file, 0, std::as_writable_bytes(std::span(magic))) != 0) return;
  const std::string_view begin(magic.data(), magic.size());
  if (begin != "PK\3\4" && !begin.starts_with("\x80\2")) return;
  const auto target = std::filesystem::path(path).replace_extension(".safetensors").string();
  throw DataError::mismatch(path, "a safetensors file", "one of torch.save",
                            fmt::format("{} {} {}", kConvert, path, target));
}

void check_device(const std::string& device) {
  if (device == "auto" || device == "cpu") return;
  if (!device.starts_with("cuda")) {
    throw UsageError::malformed("--device", "auto, cpu, cuda or cuda:N", device, "such as cuda:0");
  }
  require_gpu("--device " + device, "use --device cpu");
}

void complete_save_path(SingleOptions& options, bool given, const std::string& default_path) {
  const bool is_convnet = options.recipe.name == "convnet";
  const std::string path = !default_path.empty() ? default_path
                           : is_convnet          ? "origin_checkpoint.safetensors"
                                                 : "mnist_cnn.safetensors";
  if (given && options.save.empty()) options.save = path;
  if (options.save.empty()) return;
  require_no_pickle_name("--save", options.save, kConvert);
  require_writable_folder("--save", options.save);
}

// Of the libraries that the application uses beside those of ladder.
std::vector<std::pair<std::string, std::string>> own_versions() {
  return {{"zlib", zlibVersion()}, {"cli11", CLI11_VERSION}};
}

// Where a flag has the recipe's value.
std::map<std::string, std::string> values_of_recipe(const RecipeOptions& recipe) {
  const auto defaults = recipe_defaults(recipe.name);
  const auto text = [](auto value) { return fmt::format("{}", value); };
  return {{"--lr", text(recipe.lr.value_or(defaults.lr))},
          {"--epochs", text(recipe.epochs.value_or(defaults.epochs))},
          {"--batch-size", text(recipe.batch_size.value_or(defaults.batch_size))},
          {"--eval-batch-size", text(recipe.eval_batch_size.value_or(defaults.eval_batch_size))},
          {"--head", recipe.head.value_or(defaults.head)},
          {"--normalize", text(recipe.normalize.value_or(defaults.normalize))}};
}

void complete_monitor(SingleOptions& options, const Flags& flags) {
  auto& monitor = options.monitor;
  monitor.settings = flags.settings(values_of_recipe(options.recipe));
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

void complete_ranks(RankOptions& options, const Flags& flags, const CommandTexts& texts,
                    bool require_launcher) {
  complete_group(options, texts, require_launcher);
  require_growing_batch(options.recipe, options.batch_mode == BatchMode::kPerDevice,
                        "--batch-mode per-device");
  options.exact = exact_options(texts.sums, flags, options.check_replicas);
  require_masks_by_position(options.recipe, options.exact.has_value());
  require_global_batches(!options.exact || options.batch_mode == BatchMode::kGlobal,
                         "--batch-mode");
  complete_all(options, flags, texts);
}

}  // namespace

void add_list(Flags& flags, Effect effect, const std::string& name,
              std::vector<std::string>& target, const char* type, const char* form,
              const std::string& help) {
  flags.value(
      effect, name, type, help,
      [&target, form](const std::string& flag, const std::string& list) {
        target = parse_list(flag, list, form);
      },
      [&target] { return fmt::format("{}", fmt::join(target, ",")); });
}

void add_network_flags(Flags& flags, RecipeOptions& recipe) {
  flags.choice(kWeights, "--head", recipe.head,
               {{"log-softmax", "log-softmax"}, {"logits", "logits"}},
               "output of the network [log-softmax; convnet: logits]", kRecipe);
  flags.integer(kWeights, "--width", recipe.width, {1, kLargestWidth}, "channel multiplier");
  flags.flag(kWeights, "--normalize,!--no-normalize", recipe.normalize,
             "subtract mean 0.1307, divide by 0.3081 [yes; convnet: no]", kRecipe);
  flags.choice(kWeights, "--math", recipe.math,
               {{"fast", Math::kFast}, {"reference", Math::kReference}},
               "arithmetic; reference: bit-equal to Python, slower");
}

void add_recipe_name(Flags& flags, RecipeOptions& recipe) {
  flags.one_of(kWeights, "--recipe", recipe.name, {"basicnet", "convnet"},
               "network, loss, optimizer and their defaults");
}

void add_data_flags(Flags& flags, DataOptions& data) {
  flags.text(kOwn, "--data-root", data.root, "FOLDER", "folder of the MNIST files");
  flags.integer(kTraining, "--limit-train", data.limit_train, {0},
                "training images, the first N; 0 = all");
  flags.integer(kTogether, "--limit-test", data.limit_test, {0},
                "test images, the first N; 0 = all");
  flags.choice(kWeights, "--augment", data.augment, {{"none", false}, {"shift", true}},
               "augmentation; shift: random shift of each training image by up to 2 pixels");
}

void add_machine_flags(Flags& flags, SingleOptions& options) {
  constexpr int kMostGpus = 1024;
  flags.text(kOwn, "--device", options.device, "DEVICE", "auto, cpu, cuda or cuda:N");
  flags
      .value(
          kOwn, "--gpu,--gpu-ids", "IDS", "GPUs visible to this program, such as 0,1",
          [&options](const std::string& flag, const std::string& list) {
            options.gpu = parse_gpus(flag, list);
          },
          [&options] { return fmt::format("{}", fmt::join(options.gpu, ",")); })
      ->expected(1, kMostGpus)
      ->multi_option_policy(CLI::MultiOptionPolicy::Join);
  flags.integer(
      kOwn, "--threads", options.threads, {0},
      "threads per process; 0 = OMP_NUM_THREADS, else 1 with several ranks, else all CPUs");
}

void add_output_flags(Flags& flags, SingleOptions& options, const CommandTexts& texts) {
  const std::string of_recipe = "mnist_cnn.safetensors; convnet: origin_checkpoint.safetensors";
  flags.optional_path(kFolder, "--save", options.save,
                      "file for the weights, as safetensors; alone: " +
                          (texts.save_path.empty() ? of_recipe : texts.save_path));
  flags.text(kOwn, "--load", options.load, "PATH", "safetensors file with the initial weights");
  flags.text(kOwn, "--metrics", options.record.metrics, "PATH",
             "file for the record, as JSON lines");
  flags.integer(kOwn, "--fingerprint", options.monitor.fingerprint, {0, kMostOptimizerSteps},
                "steps between fingerprints, for PATH.rank0.jsonl beside --metrics; 0 = never");
  flags.text(kOwn, "--trace", options.monitor.trace, "PATH",
             "file for a Chrome trace of steps 4 to 8, for ui.perfetto.dev");
  flags.flag(kOwn, "--quiet", options.record.quiet, "print only the results");
}

void add_group_flags(Flags& flags, GroupOptions& options, std::int64_t& timeout_seconds) {
  flags.one_of(kOwn, "--backend", options.process_group.backend, backend_choices(),
               "communication backend; auto: " + automatic_backends());
  flags.integer(kOwn, "--timeout", timeout_seconds, {1, 604'800},
                "seconds that a rank waits for the others");
}

void add_rank_flags(Flags& flags, RecipeOptions& recipe, std::int64_t& check_replicas,
                    SumTexts& sums) {
  flags.choice(
      kTraining, "--scale-lr", recipe.scale_lr,
      {{"none", LrScaling::kNone}, {"linear", LrScaling::kLinear}, {"sqrt", LrScaling::kSqrt}},
      "scaling of the learning rate with the ranks, for per-device");
  flags.integer(kTogether, "--check-replicas", check_replicas, {0, kMostOptimizerSteps},
                "steps between comparisons of all ranks' weights; 0 = never");
  add_sums_flags(flags, sums);
}

// Unset for sums in float.
std::optional<ExactDataParallelOptions> exact_options(const SumTexts& sums, const Flags& flags,
                                                      std::int64_t check_replicas) {
  if (sums.exact) {
    return ExactDataParallelOptions{.micro_batch = sums.micro_batch,
                                    .check_replicas = check_replicas};
  }
  if (!flags.given("--micro-batch")) return std::nullopt;
  throw UsageError::conflict("--micro-batch", "sums in float have no micro-batches",
                             "add --sums exact");
}

// Ranks draw masks of PyTorch's generator in turn, each for its own samples.
void require_masks_by_position(const RecipeOptions& recipe, bool exact) {
  if (!exact || recipe.name != "basicnet" || recipe.math == Math::kFast) return;
  throw UsageError::conflict(
      "--sums exact", "with --math reference the dropout masks depend on the number of ranks",
      "add --math fast");
}

void require_global_batches(bool global, const char* flag) {
  if (global) return;
  throw UsageError::conflict(
      "--sums exact", fmt::format("with this {} the batches depend on the number of ranks", flag),
      fmt::format("use {} global: the ranks divide each batch", flag));
}

void add_process_flags(Flags& flags, ProcessOptions& options, const std::string& help) {
  flags.integer(kOwn, "--nprocs,--num-processes", options.nprocs, {0, 256}, help);
  flags.integer(kOwn, "--master-port", options.master_port, {0, 65535},
                "rendezvous port; 0 picks a free one");
}

void add_launcher_flags(Flags& flags, GroupOptions& options) {
  flags.text(kOwn, "--init-method", options.process_group.init_method, "URL",
             "rendezvous of the ranks: env://, tcp://HOST:PORT, file:///PATH");
  flags.integer(kOwn, "--rank", options.process_group.rank, {0, kLargestWorldSize - 1},
                "rank of this process [as launched]");
  flags.integer(kOwn, "--world-size", options.process_group.world_size, {1, kLargestWorldSize},
                "number of processes [as launched]");
}

// The files that the flags name, `also_read` besides.
void check_files(const SingleOptions& options, std::vector<NamedFile> also_read) {
  const auto& monitor = options.monitor;
  also_read.push_back({"--load", options.load});
  require_distinct_files({{"standard output", "/dev/stdout"},
                          {"--metrics", options.record.metrics, monitor.fingerprint != 0},
                          {"--save", options.save},
                          {"--trace", monitor.trace, /*of_ranks=*/true}},
                         also_read, options.data.root);
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
                             fmt::format("add {}, or omit --scale-lr", flag));
}

std::string version_text(const std::string& program) {
  std::string text = program + "\n";
  auto versions = library_versions();
  for (auto& version : own_versions()) versions.push_back(std::move(version));
  for (const auto& [name, version] : versions) text += fmt::format("  {:<14} {}\n", name, version);
  return text;
}

// The flags of each stage, in the order of --help.

void add_flags(Flags& flags, SingleOptions& options, CommandTexts& texts) {
  add_recipe_name(flags, options.recipe);
  add_training_flags(flags, options.recipe);
  add_network_flags(flags, options.recipe);
  flags.one_of(kTraining, "--scheduler", options.recipe.scheduler, {"none", "step"},
               "learning-rate schedule; step: a tenth every 30 epochs");
  flags.integer(kTraining, "--seed", options.recipe.seed, {0},
                "seed for weights, shuffling, dropout, augmentation");
  add_data_flags(flags, options.data);
  flags.integer(kOwn, "--num-workers", options.data.num_workers, {0, kMostWorkers},
                "threads that prepare batches ahead");
  flags.flag(kOwn, "--pin-memory", options.data.pin_memory,
             "keep images in host memory and batches page-locked: for a GPU");
  add_machine_flags(flags, options);
  add_output_flags(flags, options, texts);
}

void add_flags(Flags& flags, ReplicaOptions& options, CommandTexts& texts) {
  add_flags(flags, static_cast<SingleOptions&>(options), texts);
  add_list(flags, kOwn, "--device-ids", options.device_ids, "DEVICES", "as 0,1 or cpu,cpu",
           "devices of the replicas: 0,1 or cpu,cpu [all GPUs, else cpu,cpu]");
  flags.text(kOwn, "--output-device", options.output_device, "DEVICE",
             "device of the gathered outputs [the first of --device-ids]");
}

void add_flags(Flags& flags, RankOptions& options, CommandTexts& texts) {
  add_flags(flags, static_cast<SingleOptions&>(options), texts);
  add_group_flags(flags, options, texts.timeout_seconds);
  flags.choice(kTraining, "--batch-mode", options.batch_mode,
               {{"global", BatchMode::kGlobal}, {"per-device", BatchMode::kPerDevice}},
               "--batch-size counts the images of all ranks, or of each rank");
  add_rank_flags(flags, options.recipe, options.check_replicas, texts.sums);
}

void add_flags(Flags& flags, SpawnedOptions& options, CommandTexts& texts) {
  add_flags(flags, static_cast<RankOptions&>(options), texts);
  add_process_flags(flags, options, kOnePerGpu);
}

void add_flags(Flags& flags, LaunchedOptions& options, CommandTexts& texts) {
  add_flags(flags, static_cast<RankOptions&>(options), texts);
  add_launcher_flags(flags, options);
  flags.text(kFolder, "--snapshot", options.snapshot.path, "FOLDER",
             "folder of the run's state; a run that finds one there resumes from it");
  flags.integer(kTogether, "--snapshot-steps", options.snapshot.steps, {0, kMostOptimizerSteps},
                "steps between snapshots; 0 = one after each epoch");
}

void add_flags(Flags& flags, AmpOptions& options, CommandTexts& texts) {
  add_flags(flags, static_cast<RankOptions&>(options), texts);
  add_process_flags(flags, options, kOnePerGpu);
  add_launcher_flags(flags, options);
  flags.choice(
      kTogether, "--precision", options.precision,
      {{"auto", std::nullopt},
       {"fp32", Precision::kFp32},
       {"bf16", Precision::kBf16},
       {"fp16", Precision::kFp16}},
      "precision of convolutions and matrix products; auto: bf16 on the CPU, fp16 on a GPU");
  flags.flag(kTraining, "--sync-bn,!--no-sync-bn", options.sync_bn,
             "one BatchNorm over the batches of all ranks [yes]");
  flags.one_of(kOwn, "--profile", texts.profile, {"none", "ddp-practice"},
               "preset flags; ddp-practice: convnet, 3 epochs, batch 32 per device, lr 1e-4");
}

void add_flags(Flags& flags, PipelineRunOptions& options, CommandTexts& texts) {
  add_flags(flags, static_cast<SingleOptions&>(options), texts);
  add_group_flags(flags, options, texts.timeout_seconds);
  add_process_flags(flags, options, kOnePerGpu);
  add_launcher_flags(flags, options);
  add_sums_flags(flags, texts.sums);
  flags.integer(kWeights, "--micro-batches", options.pipeline.micro_batches,
                {1, kMostBatchesPerStep}, "micro-batches per batch");
  flags.choice(kTogether, "--schedule", options.pipeline.schedule,
               {{"1f1b", PipelineSchedule::k1F1B}, {"gpipe", PipelineSchedule::kGPipe}},
               "order of forwards and backwards; gpipe: all forwards first");
}

// Presets of flags: profiles and files.

void apply_presets(Flags& flags, AmpOptions& /*options*/, const CommandTexts& texts) {
  apply_profile(flags, texts.profile);
}

// Checks flags against each other, and fills in what follows from them.

void complete_all(SingleOptions& options, const Flags& flags, const CommandTexts& texts) {
  check_device(options.device);
  check_weights(options.load);
  complete_save_path(options, flags.given("--save"), texts.save_path);
  complete_monitor(options, flags);
  options.record.flags = flags.values();
  options.record.save = options.save;
  options.record.versions = own_versions();
}

void complete(SingleOptions& options, const Flags& flags, const CommandTexts& texts) {
  complete_all(options, flags, texts);
}

void complete(ReplicaOptions& options, const Flags& flags, const CommandTexts& texts) {
  if (!options.device_ids.empty() && options.device != "auto") {
    throw UsageError::conflict("--device-ids", "--device names devices already",
                               "give one of them");
  }
  complete_all(options, flags, texts);
}

void complete_group(GroupOptions& options, const CommandTexts& texts, bool require_launcher) {
  options.process_group.timeout = std::chrono::seconds(texts.timeout_seconds);
  if (options.process_group.backend == "nccl") require_gpu("--backend nccl", "use --backend gloo");
  options.process_group.require_launcher = require_launcher;
  options.process_group.torchrun = torchrun_here();
}

void complete(SpawnedOptions& options, const Flags& flags, const CommandTexts& texts) {
  complete_ranks(options, flags, texts, /*require_launcher=*/false);
}

void complete(LaunchedOptions& options, const Flags& flags, const CommandTexts& texts) {
  if (options.snapshot.path.empty() && options.snapshot.steps > 0) {
    throw UsageError::missing("--snapshot-steps", "--snapshot FOLDER, for the snapshots",
                              "add --snapshot runs/snapshot");
  }
  complete_ranks(options, flags, texts, /*require_launcher=*/true);
}

void complete(AmpOptions& options, const Flags& flags, const CommandTexts& texts) {
  complete_ranks(options, flags, texts, /*require_launcher=*/false);
  const bool synchronises = options.recipe.name == "convnet" || flags.given("--sync-bn");
  if (options.exact && options.sync_bn && synchronises) {
    throw UsageError::conflict(
        "--sums exact", "SyncBatchNorm adds floats over the ranks, so the sum depends on them",
        "add --no-sync-bn: each micro-batch has statistics of its own, on any number of ranks");
  }
}

void complete(PipelineRunOptions& options, const Flags& flags, const CommandTexts& texts) {
  complete_group(options, texts, /*require_launcher=*/false);
  options.exact = exact_options(texts.sums, flags, /*check_replicas=*/0);
  require_masks_by_position(options.recipe, options.exact.has_value());
  complete_all(options, flags, texts);
}

// Ranks compare the contents of the file that --load names: its path may differ by machine.
void share_settings(GroupOptions& options) {
  auto& settings = options.process_group.settings;
  settings = settings_of_ranks(options.monitor.settings);
  const auto file = open_regular_file(options.load);
  if (!file.problem.empty()) return;  // an error of the load
  Sha256 digest;
  read_pieces(file, [&](auto bytes) {
    digest.update(bytes);
    return true;
  });
  settings["--load"] = "of the file with SHA-256 " + digest.hex_digest().substr(0, 16);
}

template CommandLine<SingleOptions> parse_command_line(int, const char* const*);
template CommandLine<ReplicaOptions> parse_command_line(int, const char* const*);
template CommandLine<SpawnedOptions> parse_command_line(int, const char* const*);
template CommandLine<LaunchedOptions> parse_command_line(int, const char* const*);
template CommandLine<AmpOptions> parse_command_line(int, const char* const*);
template CommandLine<PipelineRunOptions> parse_command_line(int, const char* const*);

}  // namespace mnist
