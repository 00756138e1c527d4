// SPDX-License-Identifier: Apache-2.0
#include "mnist/command_line.h"

#include <fmt/core.h>
#include <zlib.h>

#include <array>
#include <filesystem>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

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

void complete_save_path(SingleOptions& options, bool given) {
  if (given && options.save.empty()) {
    const bool is_convnet = options.recipe.name == "convnet";
    options.save = is_convnet ? "origin_checkpoint.safetensors" : "mnist_cnn.safetensors";
  }
  if (options.save.empty()) return;
  require_no_pickle_name("--save", options.save, kConvert);
  require_writable_folder("--save", options.save);
}

// Of the libraries that the application uses beside those of ladder.
std::vector<std::pair<std::string, std::string>> own_versions() {
  return {{"zlib", zlibVersion()}, {"cli11", CLI11_VERSION}};
}

bool is_stack(const SingleOptions& options) { return options.recipe.name == "stack"; }

bool has_network(const SingleOptions& options) { return !options.recipe.network.empty(); }

constexpr Rule<SingleOptions> kSingleRules[] = {
    {"--fingerprint",
     [](const SingleOptions& o) { return o.monitor.fingerprint != 0 && o.record.metrics.empty(); },
     "expected --metrics PATH.jsonl, to write beside it, not set",
     "add --metrics run.jsonl: the fingerprint goes to run.rank0.jsonl"},
    {"--depth", [](const SingleOptions& o) { return o.recipe.depth && !is_stack(o); },
     "this network has layers of its own", "add --recipe stack"},
    {"--width", [](const SingleOptions& o) { return o.recipe.width != 1 && has_network(o); },
     "the network of a file has a width of its own", "omit --width or --network"},
    {"--data-root",
     [](const SingleOptions& o) { return is_stack(o) && o.data.root != MNIST_DATA_ROOT; },
     "the images of --recipe stack are those of a formula", "omit it"},
};

void complete_monitor(SingleOptions& options, const Flags& flags) {
  auto& monitor = options.monitor;
  monitor.settings = flags.settings();
  monitor.quiet = options.record.quiet;
  monitor.fingerprint_beside = options.record.metrics;
  if (options.recipe.name == "convnet") {  // the lines of the DDP-practice tutorial
    monitor.epoch_line = "begin training of epoch {epoch}/{epochs}";
    monitor.testing_line = "begin testing";
  }
  if (!monitor.trace.empty()) require_writable_folder("--trace", monitor.trace);
}

bool grows(const RankOptions& options) { return options.batch_mode == BatchMode::kPerDevice; }

constexpr Rule<RankOptions> kRankRules[] = {
    {"--scale-lr",
     [](const RankOptions& o) { return o.recipe.scale_lr != LrScaling::kNone && !grows(o); },
     "in global mode the batch does not grow with the ranks",
     "add --batch-mode per-device, or omit --scale-lr"},
    kNoMicroBatches<RankOptions>,
    kMasksByPosition<RankOptions>,
    {"--sums exact", [](const RankOptions& o) { return in_micro_batches(o) && grows(o); },
     "with this --batch-mode the batches depend on the number of ranks",
     "use --batch-mode global: the ranks divide each batch"},
};
constexpr Rule<SnapshotOptions> kSnapshotRules[] = {
    {"--snapshot-steps", [](const SnapshotOptions& o) { return o.path.empty() && o.steps > 0; },
     "expected --snapshot FOLDER, for the snapshots, not set", "add --snapshot runs/snapshot"},
};
constexpr Rule<ReplicaOptions> kReplicaRules[] = {
    {"--device-ids",
     [](const ReplicaOptions& o) { return !o.device_ids.empty() && o.device != "auto"; },
     "--device names devices already", "give one of them"},
};
constexpr Rule<FullyShardedRunOptions> kFullyShardedRules[] = {
    {"--sums exact", [](const FullyShardedRunOptions& o) { return in_micro_batches(o); },
     "no rank has a whole gradient to add in integers",
     "use beyond/zero_redundancy for --sums exact"},
    {"--check-replicas",
     [](const FullyShardedRunOptions& o) { return o.replicate.check_replicas > 0; },
     "there are no replicas: each rank has other parameters", "omit --check-replicas"},
};
constexpr Rule<PipelineRunOptions> kPipelineRules[] = {
    kNoMicroBatches<PipelineRunOptions>,
    kMasksByPosition<PipelineRunOptions>,
    {"--network", [](const PipelineRunOptions& o) { return has_network(o); },
     "a network of a file has no layers to divide", "omit it"},
};

constexpr const char* kAmpPath = "ddp_checkpoint.safetensors";

constexpr Option<AmpOptions> kAmp[] = {
    option<&AmpOptions::precision>(
        kTogether, "precision", "auto|fp32|bf16|fp16",
        "precision of convolutions and matrix products; auto: bf16 on the CPU, fp16 on a GPU"),
    option<&AmpOptions::sync_bn>(kTraining, "sync_bn", "",
                                 "one BatchNorm over the batches of all ranks [yes]"),
};
constexpr Option<CommandTexts> kProfile[] = {
    option<&CommandTexts::profile>(
        kOwn, "profile", "none|ddp-practice",
        "preset flags; ddp-practice: convnet, 3 epochs, batch 32 per device, lr 1e-4"),
};

void complete_ranks(RankOptions& options, const Flags& flags, bool require_launcher) {
  complete_group(options, require_launcher);
  require_rules(kRankRules, options);
  complete_all(options, flags);
}

}  // namespace

// "0,1", "0 1", or values that CLI11 has joined by line ends.
void tables::read_gpus(const GivenValue& given, SingleOptions& options) {
  options.gpu.clear();
  for (const auto& part : split(text_of(given.value), ',')) {
    std::istringstream words(part);
    std::string word;
    words >> word;
    do {
      const auto id = ladder::parse_number<unsigned>(word);
      if (!id) given.refuse("numbers separated by commas or spaces, as 0,1", "such as --gpu 0,1");
      options.gpu.push_back(fmt::format("{}", *id));
    } while (words >> word);
  }
}

void tables::read_device(const GivenValue& given, SingleOptions& options) {
  options.device = text_of(given.value);
  if (options.device == "auto" || options.device == "cpu") return;
  if (!options.device.starts_with("cuda")) {
    given.refuse("auto, cpu, cuda or cuda:N", "such as cuda:0");
  }
  require_gpu(given.where + " " + options.device, "use --device cpu");
}

std::string version_text(const std::string& program) {
  std::string text = program + "\n";
  auto versions = library_versions();
  for (auto& version : own_versions()) versions.push_back(std::move(version));
  for (const auto& [name, version] : versions) text += fmt::format("  {:<14} {}\n", name, version);
  return text;
}

// The flags of each stage, in the order of --help.

void add_shared_flags(Flags& flags, SingleOptions& options) {
  flags.add(tables::kData, options.data);
  flags.add(tables::kMachine, options);
  constexpr int kMaxGpus = 1024;
  flags.app()
      .get_option("--gpu")
      ->expected(1, kMaxGpus)
      ->multi_option_policy(CLI::MultiOptionPolicy::Join);
  flags.add(tables::kFiles, options);
}

void add_flags(Flags& flags, SingleOptions& options, CommandTexts& /*texts*/) {
  flags.add(tables::kRecipe, options.recipe);
  flags.add(tables::kScheduler, options.recipe);
  add_shared_flags(flags, options);
}

void add_flags(Flags& flags, ReplicaOptions& options, CommandTexts& texts) {
  add_flags(flags, static_cast<SingleOptions&>(options), texts);
  flags.add(tables::kReplicas, options);
}

void add_rank_flags(Flags& flags, GroupOptions& options, SumOptions& sums) {
  flags.add(tables::kScaling, options.recipe);
  flags.add(tables::kCheck, sums);
  flags.add(tables::sums(), sums);
}

void add_flags(Flags& flags, RankOptions& options, CommandTexts& texts) {
  add_flags(flags, static_cast<SingleOptions&>(options), texts);
  flags.add(tables::group(), options.process_group);
  flags.add(tables::kBatchMode, options);
  add_rank_flags(flags, options, options);
}

void add_flags(Flags& flags, SpawnedOptions& options, CommandTexts& texts) {
  add_flags(flags, static_cast<RankOptions&>(options), texts);
  flags.add<ProcessOptions>(tables::kProcesses, options);
}

void add_flags(Flags& flags, FullyShardedRunOptions& options, CommandTexts& texts) {
  add_flags(flags, static_cast<SpawnedOptions&>(options), texts);
  flags.add(tables::kFullySharded, options.fully_sharded);
}

void add_flags(Flags& flags, LaunchedOptions& options, CommandTexts& texts) {
  add_flags(flags, static_cast<RankOptions&>(options), texts);
  flags.add(tables::kLauncher, options.process_group);
  flags.add(tables::kSnapshot, options.snapshot);
}
void add_flags(Flags& flags, AmpOptions& options, CommandTexts& texts) {
  add_flags(flags, static_cast<RankOptions&>(options), texts);
  flags.app().get_option("--save")->description(
      fmt::format("file for the weights, as safetensors; alone: {}", kAmpPath));
  flags.add<ProcessOptions>(tables::kProcesses, options);
  flags.add(tables::kLauncher, options.process_group);
  flags.add(kAmp, options);
  flags.add(kProfile, texts);
}

void add_flags(Flags& flags, PipelineRunOptions& options, CommandTexts& texts) {
  add_flags(flags, static_cast<SingleOptions&>(options), texts);
  flags.add(tables::group(), options.process_group);
  flags.add<ProcessOptions>(tables::kProcesses, options);
  flags.add(tables::kLauncher, options.process_group);
  flags.add<SumOptions>(tables::sums(), options);
  flags.add(tables::kPipeline, options.pipeline);
}

// Flags of the command line take precedence over those of a profile.
void apply_presets(Flags& flags, AmpOptions& /*options*/, CommandTexts& texts) {
  if (texts.profile != "ddp-practice") return;
  for (const auto& [flag, value] : {std::pair{"--recipe", "convnet"},
                                    {"--epochs", "3"},
                                    {"--batch-size", "32"},
                                    {"--lr", "1e-4"},
                                    {"--batch-mode", "per-device"}}) {
    flags.preset(flag, value, "--profile");
  }
}

// Checks flags against each other, and fills in what follows from them.

void complete_all(SingleOptions& options, const Flags& flags) {
  options.recipe = with_defaults(options.recipe);
  if (options.recipe.tf32) require_gpu("--tf32", "omit it");
  require_rules(kSingleRules, options);
  check_weights(options.load);
  complete_save_path(options, flags.given("--save"));
  complete_monitor(options, flags);
  for (const auto& [name, value, effect] : options.monitor.settings) {
    options.record.flags.emplace_back(name, value);
  }
  options.record.save = options.save;
  options.record.versions = own_versions();
}

void complete(SingleOptions& options, const Flags& flags, const CommandTexts& /*texts*/) {
  complete_all(options, flags);
}

void complete(ReplicaOptions& options, const Flags& flags, const CommandTexts& /*texts*/) {
  require_rules(kReplicaRules, options);
  complete_all(options, flags);
}

// .venv/bin/torchrun is as typed after ./run has made .venv.
void complete_group(GroupOptions& options, bool require_launcher) {
  const std::string own = ".venv/bin/torchrun";
  if (options.process_group.backend == "nccl") require_gpu("--backend nccl", "use --backend gloo");
  options.process_group.require_launcher = require_launcher;
  options.process_group.torchrun = std::filesystem::exists(own) ? own : "torchrun";
}

void complete(SpawnedOptions& options, const Flags& flags, const CommandTexts& /*texts*/) {
  complete_ranks(options, flags, /*require_launcher=*/false);
}

void complete(FullyShardedRunOptions& options, const Flags& flags, const CommandTexts& texts) {
  require_rules(kFullyShardedRules, options);
  complete(static_cast<SpawnedOptions&>(options), flags, texts);
}

void complete(LaunchedOptions& options, const Flags& flags, const CommandTexts& /*texts*/) {
  require_rules(kSnapshotRules, options.snapshot);
  complete_ranks(options, flags, /*require_launcher=*/true);
}

void complete(AmpOptions& options, const Flags& flags, const CommandTexts& /*texts*/) {
  if (flags.given("--save") && options.save.empty()) options.save = kAmpPath;
  complete_ranks(options, flags, /*require_launcher=*/false);
  const bool synchronises = options.recipe.name == "convnet" || flags.given("--sync-bn");
  if (in_micro_batches(options) && options.sync_bn && synchronises) {
    throw UsageError::conflict(
        "--sums exact", "SyncBatchNorm adds floats over the ranks, so the sum depends on them",
        "add --no-sync-bn: each micro-batch has statistics of its own, on any number of ranks");
  }
}

void complete(PipelineRunOptions& options, const Flags& flags, const CommandTexts& /*texts*/) {
  complete_group(options, /*require_launcher=*/false);
  require_rules(kPipelineRules, options);
  complete_all(options, flags);
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
template CommandLine<FullyShardedRunOptions> parse_command_line(int, const char* const*);
template CommandLine<LaunchedOptions> parse_command_line(int, const char* const*);
template CommandLine<AmpOptions> parse_command_line(int, const char* const*);
template CommandLine<PipelineRunOptions> parse_command_line(int, const char* const*);

}  // namespace mnist
