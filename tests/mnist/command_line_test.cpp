// SPDX-License-Identifier: Apache-2.0
#include "mnist/command_line.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/core/gpus.h"
#include "ladder/core/log.h"
#include "ladder/monitor/run_settings.h"
#include "mnist/accelerated_main.h"
#include "mnist/flags.h"
#include "tests/support/captured_stream.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace mnist {
namespace {

using namespace ladder;

template <typename Options = SingleOptions>
CommandLine<Options> parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "build/bin/stage0_single_gpu");
  return parse_command_line<Options>(static_cast<int>(arguments.size()), arguments.data());
}

template <typename Options = SingleOptions>
Options options(const std::vector<const char*>& arguments) {
  return *parse<Options>(arguments).options;
}

std::string flag(const SingleOptions& options, const std::string& name) {
  for (const auto& [key, value] : options.record.flags) {
    if (key == name) return value;
  }
  return "no such flag";
}

TEST(CommandLine, LeavesToTheRecipeWhatIsNotGiven) {
  const auto found = options({});
  EXPECT_EQ(found.recipe.name, "basicnet");
  EXPECT_FALSE(found.recipe.epochs.has_value());
  EXPECT_FALSE(found.recipe.normalize.has_value());
  EXPECT_EQ(found.recipe.seed, 42U);
  EXPECT_EQ(found.record.stage, "stage0_single_gpu");
  EXPECT_EQ(found.device, "auto");
  EXPECT_TRUE(found.save.empty());
}

TEST(CommandLine, TakesEveryFlagIntoItsPlace) {
  const auto found = options({"--recipe",  "convnet",     "-e",
                              "5",         "-b",          "16",
                              "--lr",      "0.5",         "--seed",
                              "7",         "--threads",   "3",
                              "--augment", "shift",       "--num-workers",
                              "2",         "--math",      "reference",
                              "--head",    "log-softmax", "--width",
                              "2",         "--quiet",     "--limit-train",
                              "100",       "--normalize", "--pin-memory"});
  EXPECT_EQ(found.recipe.name, "convnet");
  EXPECT_EQ(found.recipe.epochs, 5);
  EXPECT_EQ(found.recipe.batch_size, 16);
  EXPECT_EQ(found.recipe.lr, 0.5);
  EXPECT_EQ(found.recipe.seed, 7U);
  EXPECT_EQ(found.recipe.normalize, true);
  EXPECT_EQ(found.recipe.head, "log-softmax");
  EXPECT_EQ(found.recipe.math, Math::kReference);
  EXPECT_EQ(found.recipe.width, 2);
  EXPECT_EQ(found.threads, 3);
  EXPECT_EQ(found.data.num_workers, 2);
  EXPECT_EQ(found.data.limit_train, 100);
  EXPECT_TRUE(found.data.augment && found.record.quiet && found.data.pin_memory);
}

TEST(CommandLine, TakesUnderscoresForDashes) {
  EXPECT_EQ(options({"--batch_size=48"}).recipe.batch_size, 48);
  EXPECT_EQ(options({"--gpu_ids", "0"}).gpu, std::vector<std::string>{"0"});
}

TEST(CommandLine, TakesGpusSeparatedByCommasOrSpaces) {
  const std::vector<std::string> both = {"6", "7"};
  const std::vector<std::vector<const char*>> forms = {
      {"--gpu-ids", "6,7"}, {"--gpu-ids", "6, 7"},        {"--gpu-ids", "6 7"},
      {"--gpu-ids=6,7"},    {"--gpu-ids", "6", "7"},      {"--gpu-ids", "6", "7", "--quiet"},
      {"--gpu", "6,", "7"}, {"--gpu", "6", "--gpu", "07"}};
  for (const auto& form : forms) {
    const auto found = options(form);
    EXPECT_EQ(found.gpu, both) << form.size();
    EXPECT_EQ(flag(found, "--gpu"), "6,7");
  }
  EXPECT_ERROR(parse({"--gpu", "6,,7"}), UsageError, "--gpu: expected numbers separated by");
}

TEST(CommandLine, SaveMayStandWithoutAName) {
  EXPECT_EQ(options({"--save"}).save, "mnist_cnn.safetensors");
  EXPECT_EQ(options({"--save", "--recipe", "convnet"}).save, "origin_checkpoint.safetensors");
  EXPECT_EQ(options({"--save", "a.safetensors"}).save, "a.safetensors");
  EXPECT_EQ(options<AmpOptions>({"--save"}).save, "ddp_checkpoint.safetensors");
}

TEST(CommandLine, RecordsEveryFlagAsResolved) {
  const auto found = options({"--epochs", "2", "--no-normalize", "--save"});
  EXPECT_EQ(flag(found, "--epochs"), "2");
  EXPECT_EQ(flag(found, "--lr"), "recipe");
  EXPECT_EQ(flag(found, "--normalize"), "false");
  EXPECT_EQ(flag(found, "--recipe"), "basicnet");
  EXPECT_EQ(flag(found, "--save"), "mnist_cnn.safetensors");
}

TEST(CommandLine, RefusesWhatItDoesNotKnowAndNamesTheNearest) {
  EXPECT_ERROR(parse({"--epoch", "3"}), UsageError,
               "--epoch: no such option; hint: did you mean --epochs?");
  EXPECT_ERROR(parse({"--zzzzzzzzzzzz"}), UsageError,
               "no such option; hint: --help lists them all");
  EXPECT_ERROR(parse({"mnist"}), UsageError, "mnist: no such option");
  EXPECT_ERROR(parse({"--recipe", "basicnets"}), UsageError,
               "--recipe: expected one of basicnet, convnet, got 'basicnets'; hint: did you mean "
               "basicnet?");
}

TEST(CommandLine, RefusesNumbersOfTheWrongForm) {
  EXPECT_ERROR(parse({"--epochs", "3x"}), UsageError,
               "--epochs: expected a whole number, got '3x'; hint: --help shows the default");
  EXPECT_ERROR(parse({"--threads", "99999999999"}), UsageError, "--threads");
  EXPECT_ERROR(parse({"--seed", "-1"}), UsageError, "--seed: expected a number >= 0, got -1");
  EXPECT_ERROR(parse({"--gpu", "0,x"}), UsageError, "--gpu: expected numbers separated by commas");
}

TEST(CommandLine, ReadsNumbersAsTheyAreWritten) {
  EXPECT_EQ(options({"--epochs", "010"}).recipe.epochs, 10);
  EXPECT_EQ(options({"--lr", "0.1"}).recipe.lr, 0.1);
  EXPECT_EQ(options({"--seed", "9223372036854775807"}).recipe.seed, 9223372036854775807U);
  for (const char* text : {"0x10", "true", " 3", "+3", "-"}) {
    EXPECT_ERROR(parse({"--epochs", text}), UsageError, "--epochs: expected a whole number");
  }
}

TEST(CommandLine, NamesTheFlagOfANumberOutOfRange) {
  EXPECT_ERROR(parse({"--metrics", "run.jsonl", "--fingerprint", "9223372036854775807"}),
               UsageError, "--fingerprint: expected 0 to 1000000000000, got 9223372036854775807");
  EXPECT_ERROR(parse({"--epochs", "-1"}), UsageError, "--epochs: expected a number >= 0, got -1");
  EXPECT_ERROR(parse({"--epochs", "18446744073709551616"}), UsageError,
               "--epochs: expected 0 to 1000000000, got 18446744073709551616; hint: --help shows");
  EXPECT_ERROR(parse({"--epochs", "-18446744073709551616"}), UsageError,
               "--epochs: expected a number >= 0, got -18446744073709551616");
  EXPECT_ERROR(parse({"--batch-size", "0"}), UsageError, "--batch-size: expected a number >= 1");
  EXPECT_ERROR(parse({"--threads", "99999999999"}), UsageError,
               "--threads: expected 0 to 2147483647, got 99999999999");
  EXPECT_ERROR(parse<SpawnedOptions>({"--nprocs", "999"}), UsageError,
               "--nprocs: expected 0 to 256, got 999");
  EXPECT_ERROR(parse<SpawnedOptions>({"--master-port", "70000"}), UsageError,
               "--master-port: expected 0 to 65535, got 70000");
  EXPECT_ERROR(parse<SpawnedOptions>({"--timeout", "604801"}), UsageError,
               "--timeout: expected 1 to 604800, got 604801");
}

TEST(CommandLine, NamesTheFlagThatNeedsAGpu) {
  EXPECT_ERROR(parse({"--device", "gpu"}), UsageError,
               "--device: expected auto, cpu, cuda or cuda:N, got 'gpu'");
  if (machine_gpu_count() > 0) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_ERROR(parse({"--device", "cuda:1"}), UsageError,
               "--device cuda:1: this machine has no GPU; hint: use --device cpu");
  EXPECT_ERROR(parse<SpawnedOptions>({"--backend", "nccl"}), UsageError,
               "--backend nccl: this machine has no GPU; hint: use --backend gloo");
}

TEST(CommandLine, AFlagWithoutAValueMayHaveOne) {
  EXPECT_FALSE(options({"--quiet=false"}).record.quiet);
  EXPECT_EQ(options({"--no-normalize", "--normalize"}).recipe.normalize, true);
  EXPECT_ERROR(parse({"--quiet=maybe"}), UsageError,
               "--quiet: expected true or false, got 'maybe'");
  EXPECT_ERROR(parse({"--no-normalize=maybe"}), UsageError, "--normalize: expected true or false");
}

TEST(CommandLine, NamesTheConverterOfPicklesToLoad) {
  const TemporaryFolder folder;
  for (const char* magic : {"PK\3\4 ...", "\x80\2 ..."}) {
    const std::string path = folder.write("a.pt", magic);
    EXPECT_ERROR(parse({"--load", path.c_str()}), DataError,
                 path +
                     ": expected a safetensors file, got one of torch.save; hint: "
                     ".venv/bin/python tools/convert_checkpoint.py " +
                     path + " " + folder.file("a.safetensors"));
  }
  const std::string other = folder.write("b.pt", "no pickle");  // the library refuses it
  EXPECT_EQ(options({"--load", other.c_str()}).load, other);
}

TEST(CommandLine, RefusesAnEmptyVariableOfAShellAndOneFileForTwoThings) {
  using Arguments = std::vector<const char*>;
  for (const Arguments& arguments : {Arguments{"--load", ""},
                                     {"--metrics", ""},
                                     {"--gpu", ""},
                                     {"--metrics", "--quiet"},
                                     {"--metrics", "--no-such"},
                                     {"-e", "--quiet"},
                                     {"--save", ""},
                                     {"--pin_memory="}}) {
    EXPECT_ERROR(parse(arguments), UsageError, ": expected a value, not set; hint: is a shell ");
  }
  for (const Arguments& arguments : {Arguments{"--output-dir", "--quiet"},
                                     {"--output-dir=", "--no-do-eval"},
                                     {"--output-dir", ""},
                                     {"--run-name", "--quiet"},
                                     {"--bf16", ""}}) {
    EXPECT_ERROR(parse<TrainerRunOptions>(arguments), UsageError, ": expected a value, not set; ");
  }
  EXPECT_ERROR(parse({"--save", "a", "--metrics", "a"}), UsageError,
               "--save a: names the same file as --metrics");
}

TEST(CommandLine, AWordIsNoPath) {
  for (const char* word : {"no", "false", "None", "--quiet"}) {
    for (const char* flag : {"--save", "--metrics", "--project-dir", "--resume", "--hparams"}) {
      EXPECT_ERROR(
          parse<AcceleratedOptions>({fmt::format("{}={}", flag, word).c_str()}), UsageError,
          fmt::format("{}: expected a path, got '{}'; hint: omit it, or write ./", flag, word));
    }
  }
  EXPECT_ERROR(parse<TrainerRunOptions>({"--output-dir", "no"}), UsageError,
               "output_dir: expected");
  EXPECT_EQ(options({"--save", "./no"}).save, "./no");
}

TEST(CommandLine, AFlagThatIsGivenTwiceIsRefused) {
  EXPECT_ERROR(parse({"--epochs", "2", "-e", "3"}), UsageError,
               "--epochs: At Most 1 required but received 2; hint: give each flag once");
}

// The arguments live as long as the call.
template <typename Options>
Options options_of(const std::vector<std::string>& arguments) {
  std::vector<const char*> pointers;
  for (const auto& argument : arguments) pointers.push_back(argument.c_str());
  return options<Options>(pointers);
}

TEST(CommandLine, NoOutputWritesOverAnotherFileOfTheRun) {
  const TemporaryFolder folder;
  const auto a = folder.file("a.json");
  const auto weights = folder.write("w.safetensors", "weights");
  const auto hparams = folder.write("h.yaml", "lr: 0.1");
  std::filesystem::create_symlink("a.json", folder.file("link"));
  const auto refused = [](const std::vector<std::string>& arguments, const std::string& text) {
    EXPECT_ERROR(options_of<AcceleratedOptions>(arguments), UsageError, text);
  };
  refused({"--metrics", a, "--trace", folder.path() + "/./a.json"}, "the same file as --metrics");
  refused({"--metrics", folder.file("a.rank1.json"), "--trace", a}, "the same file as --metrics");
  refused({"--metrics", a, "--trace", folder.file("b.json"), "--save", folder.file("b.rank3.json")},
          "--trace " + folder.file("b.json") + ": names the same file as --save");
  refused({"--metrics", folder.file("m.jsonl"), "--fingerprint", "1", "--save",
           folder.file("m.rank0.jsonl")},
          "the same file as --metrics");
  refused({"--metrics", folder.file("link"), "--save", a}, "the same file as --metrics");
  refused({"--load", weights, "--metrics", weights}, "names the file that is read as --load");
  testing::internal::CaptureStdout();  // into a file
  refused({"--metrics", std::filesystem::read_symlink("/proc/self/fd/1")}, "as standard output");
  testing::internal::GetCapturedStdout();
  const auto labels = folder.write("t10k-labels-idx1-ubyte.gz", "labels");
  refused({"--data-root", folder.path(), "--metrics", labels}, "is a file of --data-root");
  EXPECT_NO_THROW(
      options_of<AcceleratedOptions>({"--data-root", folder.path(), "--save", weights}));
  EXPECT_NO_THROW(options_of<AcceleratedOptions>({"--load", weights, "--save", weights}));
  refused({"--hparams", hparams, "--metrics", hparams}, "the file that is read as --hparams");
  EXPECT_NO_THROW(options_of<AcceleratedOptions>({"--metrics", "/dev/null", "--trace", a}));
}

TEST(CommandLine, ATrainerThatDoesNotTrainTakesNoFlagsOfATraining) {
  for (const auto& flags : {std::vector<std::string>{"--resume", "c"},
                            {"--trace", "t.json"},
                            {"--metrics", "m.jsonl"}}) {
    auto arguments = flags;
    arguments.emplace_back("--no-do-train");
    EXPECT_ERROR(options_of<TrainerRunOptions>(arguments), UsageError,
                 flags.front() + ": it needs a training");
  }
}

TEST(CommandLine, RanksCompareWhatDefinesTheRun) {
  const auto settings = [](const std::vector<std::string>& arguments) {
    return options_of<LaunchedOptions>(arguments).process_group.settings;
  };
  const auto usual = settings({});
  EXPECT_EQ(usual.at("--seed"), "42");
  EXPECT_EQ(usual.at("--head"), "log-softmax");
  for (const auto& [flag, value] : std::map<std::string, std::string>{{"--seed", "1"},
                                                                      {"--batch-size", "65"},
                                                                      {"--limit-train", "64"},
                                                                      {"--augment", "shift"}}) {
    EXPECT_NE(settings({flag, value}), usual) << flag;
  }
  EXPECT_EQ(settings({"--batch-size", "64", "--epochs", "1"}), usual);
  EXPECT_NE(settings({"--snapshot", "a"}), usual);
  EXPECT_EQ(settings({"--snapshot", "a"}), settings({"--snapshot", "b"}));
  EXPECT_NE(settings({"--save", "a"}), usual);
  EXPECT_EQ(settings({"--save", "a"}), settings({"--save"}));
  EXPECT_EQ(settings({"--metrics", "a", "--num-workers", "2", "--threads", "1", "--quiet"}), usual);
  const auto accelerated = options_of<AcceleratedOptions>({"--seed", "3"});
  EXPECT_EQ(accelerated.accelerator.process_group.settings.at("--seed"), "3");
  EXPECT_TRUE(accelerated.process_group.settings.contains("--total-limit"));
  const auto trainer = options_of<TrainerRunOptions>({});
  EXPECT_TRUE(trainer.process_group.settings.contains("--save-total-limit"));
}

// A new option needs its row alone.
TEST(CommandLine, TheEffectOfAnOptionDecidesWhoComparesIt) {
  std::int64_t depth = 1;
  std::int64_t warm_up = 2;
  std::int64_t threads = 3;
  std::string folder;
  Flags flags("program");
  flags.integer(Effect::kWeights, "--depth", depth, {1}, "layers");
  flags.integer(Effect::kTraining, "--warm-up", warm_up, {0}, "steps of the warm-up");
  flags.integer(Effect::kOwn, "--threads", threads, {0}, "threads");
  flags.text(Effect::kFolder, "--out", folder, "FOLDER", "folder of the results");
  EXPECT_EQ(settings_of_ranks(flags.settings()),
            (std::map<std::string, std::string>{
                {"--depth", "1"}, {"--out", "unset"}, {"--warm-up", "2"}}));
  const auto saved = settings_to_json(flags.settings());
  EXPECT_EQ(saved, nlohmann::json({{"--depth", "1"}, {"--warm-up", "2"}}));
  CapturedStream stream;
  const Log log({.stream = stream.get()});
  warm_up = 5;
  threads = 4;
  compare_settings(saved, flags.settings(), "progress.json", log);
  EXPECT_EQ(stream.text(), "progress.json: --warm-up was 2, and is 5 from here on\n");
  depth = 2;
  EXPECT_ERROR(compare_settings(saved, flags.settings(), "progress.json", log), UsageError,
               "progress.json: it was written with --depth=1, and this run has --depth=2");
}

TEST(CommandLine, AStageHasTheFlagsOfItsOwnIdea) {
  const auto replicas =
      options<ReplicaOptions>({"--device-ids", "0, cpu", "--output-device", "cpu"});
  EXPECT_EQ(replicas.device_ids, (std::vector<std::string>{"0", "cpu"}));
  EXPECT_EQ(replicas.output_device, "cpu");
  const auto found =
      options<AmpOptions>({"--backend",        "gloo",       "--timeout",     "5",
                           "--batch-mode",     "per-device", "--scale-lr",    "sqrt",
                           "--check-replicas", "3",          "--nprocs",      "4",
                           "--master-port",    "12355",      "--init-method", "file:///tmp/a",
                           "--rank",           "1",          "--world-size",  "2",
                           "--scheduler",      "step",       "--trace",       "a.json"});
  EXPECT_EQ(found.process_group.backend, "gloo");
  EXPECT_EQ(found.process_group.timeout, std::chrono::seconds(5));
  EXPECT_EQ(found.batch_mode, BatchMode::kPerDevice);
  EXPECT_EQ(found.recipe.scale_lr, LrScaling::kSqrt);
  EXPECT_EQ(found.recipe.scheduler, "step");
  EXPECT_EQ(found.check_replicas, 3);
  EXPECT_EQ(found.nprocs, 4);
  EXPECT_EQ(found.master_port, 12355);
  EXPECT_EQ(found.process_group.init_method, "file:///tmp/a");
  EXPECT_EQ(found.process_group.rank, 1);
  EXPECT_EQ(found.process_group.world_size, 2);
  EXPECT_EQ(found.monitor.trace, "a.json");
}

TEST(CommandLine, AStageThatCanSpawnNeedsNoLauncher) {
  EXPECT_TRUE(options<LaunchedOptions>({}).process_group.require_launcher);
  EXPECT_FALSE(options<AmpOptions>({}).process_group.require_launcher);
}

TEST(CommandLine, PrecisionIsThatOfTheDeviceUnlessOneIsNamed) {
  EXPECT_EQ(options<AmpOptions>({}).precision, std::nullopt);
  EXPECT_EQ(options<AmpOptions>({"--precision", "auto"}).precision, std::nullopt);
  EXPECT_EQ(options<AmpOptions>({"--precision", "fp32"}).precision, Precision::kFp32);
  EXPECT_EQ(options<AmpOptions>({"--precision", "bf16"}).precision, Precision::kBf16);
  EXPECT_EQ(options<AmpOptions>({"--precision", "fp16"}).precision, Precision::kFp16);
  EXPECT_ERROR(parse<AmpOptions>({"--precision", "fp8"}), UsageError, "--precision");
}

TEST(CommandLine, SyncBatchNormIsOnUnlessSwitchedOff) {
  EXPECT_TRUE(options<AmpOptions>({}).sync_bn);
  EXPECT_TRUE(options<AmpOptions>({"--sync-bn"}).sync_bn);
  EXPECT_FALSE(options<AmpOptions>({"--no-sync-bn"}).sync_bn);
  EXPECT_EQ(flag(options<AmpOptions>({}), "--sync-bn"), "true");
  EXPECT_EQ(flag(options<AmpOptions>({"--no-sync-bn"}), "--sync-bn"), "false");
}

TEST(CommandLine, SumsAreInFloatUnlessExactOnesAreNamed) {
  EXPECT_EQ(options<SpawnedOptions>({}).exact, std::nullopt);
  EXPECT_EQ(options<SpawnedOptions>({"--sums", "fast"}).exact, std::nullopt);
  EXPECT_EQ(options<SpawnedOptions>({}).micro_batch(), 0);
  EXPECT_EQ(options<SpawnedOptions>({"--sums", "exact"}).micro_batch(), 16);
  const auto found =
      options<LaunchedOptions>({"--sums", "exact", "--micro-batch", "8", "--check-replicas", "3"});
  EXPECT_EQ(found.exact->micro_batch, 8);
  EXPECT_EQ(found.exact->check_replicas, 3);
  EXPECT_EQ(flag(found, "--sums"), "exact");
  EXPECT_EQ(flag(found, "--micro-batch"), "8");
  const auto accelerated = options<AcceleratedOptions>({"--sums", "exact", "--micro-batch", "4"});
  EXPECT_EQ(accelerated.accelerator.exact_sums->micro_batch, 4);
  EXPECT_FALSE(options<AcceleratedOptions>({}).accelerator.exact_sums.has_value());
}

TEST(CommandLine, ExactSumsNeedBatchesThatTheRanksDivide) {
  EXPECT_ERROR(
      parse<SpawnedOptions>({"--sums", "exact", "--batch-mode", "per-device"}), UsageError,
      "--sums exact: with this --batch-mode the batches depend on the number of ranks; hint: "
      "use --batch-mode global: the ranks divide each batch");
  EXPECT_ERROR(parse<AmpOptions>({"--sums", "exact", "--profile", "ddp-practice", "--no-sync-bn"}),
               UsageError, "--sums exact: with this --batch-mode");
  for (const char* mode : {"per-process", "split-batches"}) {
    EXPECT_ERROR(parse<AcceleratedOptions>({"--sums", "exact", "--loader-mode", mode}), UsageError,
                 "--sums exact: with this --loader-mode the batches depend on");
  }
}

TEST(CommandLine, ExactSumsRefuseSyncBatchNorm) {
  const char* refusal =
      "--sums exact: SyncBatchNorm adds floats over the ranks, so the sum depends on them; hint: "
      "add --no-sync-bn";
  EXPECT_ERROR(parse<AmpOptions>({"--sums", "exact", "--recipe", "convnet"}), UsageError, refusal);
  EXPECT_ERROR(parse<AmpOptions>({"--sums", "exact", "--sync-bn"}), UsageError, refusal);
  EXPECT_FALSE(
      options<AmpOptions>({"--sums", "exact", "--recipe", "convnet", "--no-sync-bn"}).sync_bn);
  EXPECT_TRUE(options<AmpOptions>({"--sums", "exact"}).exact.has_value()) << "no BatchNorm";
}

TEST(CommandLine, ExactSumsNeedMasksByPosition) {
  const char* refusal =
      "--sums exact: with --math reference the dropout masks depend on the number of ranks; hint: "
      "add --math fast";
  EXPECT_ERROR(parse<SpawnedOptions>({"--sums", "exact", "--math", "reference"}), UsageError,
               refusal);
  EXPECT_ERROR(parse<AcceleratedOptions>({"--sums", "exact", "--math", "reference"}), UsageError,
               refusal);
  EXPECT_ERROR(parse<TrainerRunOptions>({"--sums", "exact", "--math", "reference"}), UsageError,
               refusal);
  EXPECT_NO_THROW(
      parse<SpawnedOptions>({"--sums", "exact", "--math", "reference", "--recipe", "convnet"}))
      << "no dropout";
}

TEST(CommandLine, MicroBatchesBelongToExactSums) {
  EXPECT_ERROR(parse<SpawnedOptions>({"--micro-batch", "8"}), UsageError,
               "--micro-batch: sums in float have no micro-batches; hint: add --sums exact");
  EXPECT_ERROR(parse<TrainerRunOptions>({"--micro-batch", "8"}), UsageError,
               "micro_batch: sums in float have no micro-batches; hint: set sums to exact");
  EXPECT_ERROR(parse<AcceleratedOptions>({"--sums", "fast", "--micro-batch", "8"}), UsageError,
               "--micro-batch: sums in float");
  EXPECT_ERROR(parse<SpawnedOptions>({"--sums", "exact", "--micro-batch", "0"}), UsageError,
               "--micro-batch: expected a number >= 1, got 0");
  EXPECT_ERROR(parse<SpawnedOptions>({"--sums", "exakt"}), UsageError,
               "--sums: expected one of fast, exact, got 'exakt'; hint: did you mean exact?");
  EXPECT_ERROR(parse({"--sums", "exact"}), UsageError, "--sums: no such option");
}

TEST(CommandLine, AProfileIsAsIfItsFlagsHadBeenTyped) {
  const auto found = options<AmpOptions>({"--profile", "ddp-practice"});
  EXPECT_EQ(found.recipe.name, "convnet");
  EXPECT_EQ(found.recipe.epochs, 3);
  EXPECT_EQ(found.recipe.batch_size, 32);
  EXPECT_EQ(found.recipe.lr, 1e-4);
  EXPECT_EQ(found.batch_mode, BatchMode::kPerDevice);
  EXPECT_EQ(flag(found, "--batch-mode"), "per-device");
  EXPECT_EQ(flag(found, "--profile"), "ddp-practice");
}

TEST(CommandLine, FlagsGoBeforeTheProfileWhereverTheyStand) {
  const auto before = options<AmpOptions>({"--batch-mode", "global", "--profile", "ddp-practice"});
  const auto after = options<AmpOptions>({"--profile", "ddp-practice", "-e", "1"});
  EXPECT_EQ(before.batch_mode, BatchMode::kGlobal);
  EXPECT_EQ(before.recipe.epochs, 3);
  EXPECT_EQ(after.batch_mode, BatchMode::kPerDevice);
  EXPECT_EQ(after.recipe.epochs, 1);
}

TEST(CommandLine, AStageRefusesTheFlagsOfAnother) {
  for (const char* flag :
       {"--device-ids", "--backend", "--batch-mode", "--nprocs", "--rank", "--precision"}) {
    EXPECT_ERROR(parse({flag, "1"}), UsageError, std::string(flag) + ": no such option");
  }
}

TEST(CommandLine, RefusesWhatHasNoEffectTogether) {
  EXPECT_ERROR(parse<AmpOptions>({"--scale-lr", "linear"}), UsageError,
               "--scale-lr: in global mode the batch does not grow with the ranks; hint: add "
               "--batch-mode per-device");
  EXPECT_ERROR(parse<ReplicaOptions>({"--device", "cpu", "--device-ids", "0"}), UsageError,
               "--device-ids: --device names devices already");
  EXPECT_ERROR(parse<AmpOptions>({"--timeout", "0"}), UsageError,
               "--timeout: expected a number >= 1, got 0");
  EXPECT_ERROR(parse({"--trace", "nowhere/a.json"}), UsageError, "nowhere");
}

TEST(CommandLine, RefusesFingerprintsWithoutAMetricsFile) {
  EXPECT_ERROR(parse({"--fingerprint", "1"}), UsageError,
               "--fingerprint: expected --metrics PATH.jsonl, to write beside it");
  EXPECT_EQ(options({"--fingerprint", "1", "--metrics", "a.jsonl"}).monitor.fingerprint_beside,
            "a.jsonl");
}

TEST(CommandLine, ConvnetPrintsTheLinesOfItsTutorial) {
  EXPECT_EQ(options({}).monitor.epoch_line, "");
  const auto monitor = options({"--recipe", "convnet"}).monitor;
  EXPECT_EQ(monitor.epoch_line, "begin training of epoch {epoch}/{epochs}");
  EXPECT_EQ(monitor.testing_line, "begin testing");
}

TEST(CommandLine, HelpAndVersionAreOnlyText) {
  EXPECT_FALSE(parse({"--help"}).options.has_value());
  EXPECT_NE(parse({"--help"}).text.find("--fingerprint"), std::string::npos);
  EXPECT_NE(parse({"--version"}).text.find("libtorch       2."), std::string::npos);
}

// --- A stage that trains by a Trainer ---

TrainerRunOptions trainer_options(const std::vector<const char*>& arguments) {
  return options<TrainerRunOptions>(arguments);
}

TEST(TrainerFlags, ParityIsTheRecipeAsOtherStagesTrainIt) {
  const auto found = trainer_options({});
  const auto& training = found.training;
  EXPECT_TRUE(found.parity);
  EXPECT_EQ(training.num_train_epochs, 1.0);
  EXPECT_EQ(training.per_device_train_batch_size, 64);
  EXPECT_EQ(training.per_device_eval_batch_size, 64);
  EXPECT_EQ(training.learning_rate, 1e-3);
  EXPECT_EQ(training.lr_scheduler_type, SchedulerType::kConstant);
  EXPECT_EQ(training.max_grad_norm, 0.0);
  EXPECT_EQ(training.accelerator_config.mode(), LoaderMode::kGlobal);
  EXPECT_EQ(training.save_strategy, SaveStrategy::kNo);
  EXPECT_EQ(training.logging_strategy, IntervalStrategy::kNo);
  EXPECT_EQ(training.eval_strategy, IntervalStrategy::kNo);
  EXPECT_EQ(training.output_dir, "");
  EXPECT_TRUE(training.do_train && training.do_eval);
  EXPECT_TRUE(found.notes.empty());
}

TEST(TrainerFlags, ParityTakesTheNumbersOfTheRecipe) {
  const auto found = trainer_options({"--recipe", "convnet"});
  EXPECT_EQ(found.training.num_train_epochs, 3.0);
  EXPECT_EQ(found.training.per_device_train_batch_size, 32);
  EXPECT_EQ(found.training.per_device_eval_batch_size, 32);
  EXPECT_EQ(found.training.learning_rate, 1e-4);
  EXPECT_EQ(found.recipe.lr, 1e-4);
}

TEST(TrainerFlags, ParityLeavesTheOptimizerToTheRecipe) {
  for (const char* name :
       {"--optim", "--weight-decay", "--adam-beta1", "--adam-beta2", "--adam-epsilon"}) {
    const char* value = std::string_view(name) == "--optim" ? "sgd" : "0.5";
    EXPECT_ERROR(trainer_options({name, value}), UsageError,
                 fmt::format("{}: with --profile parity the optimizer is the recipe's; hint: add "
                             "--profile none",
                             name));
    EXPECT_NO_THROW(trainer_options({name, value, "--profile", "none"}));
  }
}

TEST(TrainerFlags, HfDefaultsAreTheExampleOverThePackage) {
  const auto found = trainer_options({"--profile=hf-defaults"});
  TrainingArguments expected{.output_dir = "basic-trainer",
                             .num_train_epochs = 1.0,
                             .per_device_train_batch_size = 64,
                             .per_device_eval_batch_size = 64,
                             .eval_strategy = IntervalStrategy::kEpoch,
                             .do_train = true,
                             .do_eval = true};
  EXPECT_EQ(to_json(found.training), to_json(expected));
  EXPECT_FALSE(found.parity);
  EXPECT_TRUE(found.notes.empty());
}

TEST(TrainerFlags, NoProfileIsThePackageButTrains) {
  EXPECT_EQ(to_json(trainer_options({"--profile", "none"}).training),
            to_json({.do_train = true, .do_eval = true}));
}

TEST(TrainerFlags, EveryArgumentIsAFlagWithDashesOrUnderscores) {
  const std::string help = parse<TrainerRunOptions>({"--help"}).text;
  const auto defaults = to_json({});
  for (const auto& [name, value] : defaults.items()) {
    std::string dashes = "--" + name;
    std::replace(dashes.begin(), dashes.end(), '_', '-');
    EXPECT_NE(help.find(dashes), std::string::npos) << dashes;
    EXPECT_NE(flag(trainer_options({}), dashes), "no such flag");
  }
  EXPECT_EQ(trainer_options({"--label_smoothing_factor=0.1"}).training.label_smoothing_factor, 0.1);
  EXPECT_EQ(trainer_options({"--report-to", "jsonl,csv", "--output-dir", "out"}).training.report_to,
            (std::vector<std::string>{"jsonl", "csv"}));
}

TEST(SnapshotFlags, AreOfStageThreeAndBelongTogether) {
  const auto found =
      options<LaunchedOptions>({"--snapshot", "runs/snapshot", "--snapshot-steps", "100"});
  EXPECT_EQ(found.snapshot.path, "runs/snapshot");
  EXPECT_EQ(found.snapshot.steps, 100);
  EXPECT_EQ(options<LaunchedOptions>({"--snapshot", "a"}).snapshot.steps, 0) << "one per epoch";
  EXPECT_ERROR(options<LaunchedOptions>({"--snapshot-steps", "5"}), UsageError,
               "--snapshot-steps: expected --snapshot FOLDER");
  EXPECT_THROW(options<SpawnedOptions>({"--snapshot", "a"}), UsageError);
  EXPECT_THROW(options<AmpOptions>({"--snapshot", "a"}), UsageError);
}

TEST(ResumeFlag, AutoNeedsAProjectAndAllowsFirstWeights) {
  const auto found = options<AcceleratedOptions>(
      {"--resume", "auto", "--project-dir", "p", "--load", "first.safetensors"});
  EXPECT_TRUE(found.resume);
  EXPECT_EQ(found.resume_from, "auto");
  EXPECT_ERROR(options<AcceleratedOptions>({"--resume", "auto"}), UsageError,
               "--resume: expected --project-dir FOLDER");
  EXPECT_EQ(options<AcceleratedOptions>({"--resume", "./auto"}).resume_from, "./auto");
  EXPECT_ERROR(options<AcceleratedOptions>(
                   {"--resume", "--project-dir", "p", "--load", "first.safetensors"}),
               UsageError, "--load: --resume loads the weights of its checkpoint");
}

TEST(TrainerFlags, FlagsOfOtherStagesAreAliases) {
  const auto found = trainer_options({"-e", "2", "-b", "16", "--eval-batch-size", "8", "--lr",
                                      "0.5", "--num-workers", "3", "--pin-memory", "--backend",
                                      "gloo", "--timeout", "5", "--seed", "7", "--resume"});
  EXPECT_EQ(found.training.num_train_epochs, 2.0);
  EXPECT_EQ(found.training.per_device_train_batch_size, 16);
  EXPECT_EQ(found.training.per_device_eval_batch_size, 8);
  EXPECT_EQ(found.training.learning_rate, 0.5);
  EXPECT_EQ(found.training.dataloader_num_workers, 3);
  EXPECT_EQ(found.training.ddp_backend, "gloo");
  EXPECT_EQ(found.training.ddp_timeout, 5);
  EXPECT_EQ(found.training.seed, 7U);
  EXPECT_EQ(found.training.resume_from_checkpoint, "true");
  EXPECT_EQ(trainer_options({"--resume", "a/checkpoint-1"}).training.resume_from_checkpoint,
            "a/checkpoint-1");
  EXPECT_EQ(trainer_options({"--resume", "auto"}).training.resume_from_checkpoint, "auto");
  EXPECT_ERROR(trainer_options({"--lr", "x"}), UsageError, "--learning-rate: expected a number");
}

TEST(TrainerFlags, WhatOthersReadAgreesWithTheArguments) {
  const auto found = trainer_options({"--num-train-epochs",
                                      "1.5",
                                      "-b",
                                      "16",
                                      "--eval-batch-size",
                                      "8",
                                      "--lr",
                                      "0.5",
                                      "--seed",
                                      "7",
                                      "--device",
                                      "cpu",
                                      "--threads",
                                      "2",
                                      "--quiet",
                                      "--config-file",
                                      "a.yaml",
                                      "--backend",
                                      "gloo",
                                      "--timeout",
                                      "5",
                                      "--num-workers",
                                      "3",
                                      "--use-cpu"});
  EXPECT_EQ(found.recipe.epochs, 2);
  EXPECT_EQ(found.recipe.batch_size, 16);
  EXPECT_EQ(found.recipe.eval_batch_size, 8);
  EXPECT_EQ(found.recipe.lr, 0.5);
  EXPECT_EQ(found.recipe.seed, 7U);
  EXPECT_EQ(found.data.num_workers, 3);
  EXPECT_FALSE(found.data.pin_memory);
  const auto& accelerator = found.accelerator;
  EXPECT_EQ(accelerator.device, "cpu");
  EXPECT_EQ(accelerator.threads, 2);
  EXPECT_TRUE(accelerator.quiet && accelerator.cpu);
  EXPECT_EQ(accelerator.config_file, "a.yaml");
  EXPECT_EQ(accelerator.process_group.backend, "gloo");
  EXPECT_EQ(accelerator.process_group.timeout, std::chrono::seconds(5));
  EXPECT_EQ(trainer_options({}).accelerator.process_group.backend, "auto");
}

// dataloader_pin_memory is true by default, as in transformers: images move to a GPU all the same.
TEST(TrainerFlags, OnlyTheFlagKeepsImagesInHostMemory) {
  EXPECT_FALSE(trainer_options({}).data.pin_memory);
  EXPECT_TRUE(trainer_options({"--pin-memory"}).data.pin_memory);
  EXPECT_TRUE(trainer_options({"--dataloader-pin-memory"}).data.pin_memory);
  EXPECT_FALSE(trainer_options({"--no-dataloader-pin-memory"}).data.pin_memory);
  const TemporaryFolder folder;
  const std::string file =
      "--args-file=" + folder.write("args.json", R"({"dataloader_pin_memory": true})");
  EXPECT_FALSE(trainer_options({file.c_str()}).data.pin_memory);
}

TEST(TrainerFlags, AFlagOfArgumentsMayStandAloneOrWithAValue) {
  EXPECT_TRUE(trainer_options({"--bf16"}).training.bf16);
  EXPECT_TRUE(trainer_options({"--bf16", "true", "--quiet"}).training.bf16);
  EXPECT_FALSE(trainer_options({"--bf16", "False"}).training.bf16);
  EXPECT_TRUE(trainer_options({}).training.dataloader_pin_memory);
  EXPECT_FALSE(trainer_options({"--no-dataloader-pin-memory"}).training.dataloader_pin_memory);
  EXPECT_FALSE(trainer_options({"--no_do_eval"}).training.do_eval);
  EXPECT_EQ(trainer_options({"--tf32"}).training.tf32, true);
  EXPECT_EQ(trainer_options({"--max-steps", "-1"}).training.max_steps, -1);
  EXPECT_ERROR(trainer_options({"--bf16", "--no-bf16"}), UsageError, "bf16");
  EXPECT_ERROR(trainer_options({"--bf16", "maybe"}), UsageError,
               "--bf16: expected true or false, got 'maybe'");
}

TEST(TrainerFlags, CommandLineBeforeFileBeforeProfile) {
  const TemporaryFolder folder;
  const std::string file = "--args-file=" + folder.write("a.yaml",
                                                         "learning_rate: 0.25\n"
                                                         "per_device_train_batch_size: 16\n"
                                                         "do_eval: false\n"
                                                         "accelerator_config: {}\n"
                                                         "report_to: [jsonl, csv]\n"
                                                         "lr_scheduler_kwargs: {power: 0.5}\n");
  const auto found = trainer_options({"--lr", "0.5", "--output-dir", "out", file.c_str()});
  EXPECT_EQ(found.training.learning_rate, 0.5);
  EXPECT_EQ(found.training.per_device_train_batch_size, 16);
  EXPECT_EQ(found.training.per_device_eval_batch_size, 64);
  EXPECT_FALSE(found.training.do_eval);
  EXPECT_TRUE(found.training.do_train);
  EXPECT_EQ(found.training.accelerator_config.mode(), LoaderMode::kPerProcess);
  EXPECT_EQ(found.training.report_to, (std::vector<std::string>{"jsonl", "csv"}));
  EXPECT_EQ(found.training.lr_scheduler_kwargs, R"({"power":0.5})");
  EXPECT_EQ(found.training.lr_scheduler_type, SchedulerType::kConstant);
}

TEST(TrainerFlags, AFileOfAllArgumentsIsTheSameRunAgain) {
  const auto first = trainer_options({"--profile=hf-defaults", "--lr", "0.3333333333333333",
                                      "--eval-strategy", "steps", "--load-best-model-at-end",
                                      "--warmup-ratio", "0.1", "--data-seed", "9"});
  const TemporaryFolder folder;
  const std::string file =
      "--args-file=" + folder.write("training_args.json", to_json(first.training).dump());
  const auto again = trainer_options({"--profile", "none", file.c_str()});
  EXPECT_EQ(to_json(again.training), to_json(first.training));
  const std::string other = "--args-file=" + folder.write("other.json", R"({"adam_beta1": 0.8})");
  EXPECT_ERROR(trainer_options({other.c_str()}), UsageError,
               "other.json: adam_beta1: with --profile parity the optimizer is the "
               "recipe's; hint: add --profile none");
}

TEST(TrainerFlags, ReportsNeedAFolder) {
  EXPECT_ERROR(trainer_options({"--report-to", "jsonl"}), UsageError,
               "output_dir: expected a folder for report_to to write to");
}

TEST(TrainerFlags, AFileOfAllArgumentsOfParityIsTheSameRunAgain) {
  const auto first = trainer_options({"--seed", "7", "--output-dir", "out"});
  const TemporaryFolder folder;
  const std::string file =
      "--args-file=" + folder.write("training_args.json", to_json(first.training).dump());
  const auto again = trainer_options({file.c_str()});
  EXPECT_TRUE(again.parity);
  EXPECT_EQ(to_json(again.training), to_json(first.training));
}

TEST(TrainerFlags, ErrorsOfTheFileBeginWithItsLine) {
  const TemporaryFolder folder;
  const std::string file = "--args-file=" + folder.write("a.yaml", "seed: 1\nlearning_rat: 1\n");
  EXPECT_ERROR(trainer_options({file.c_str()}), UsageError,
               "a.yaml:2: learning_rat: no such training argument; hint: did you mean "
               "learning_rate?");
  const std::string other = "--args-file=" + folder.write("b.yaml", "seed: 1\nfp16: maybe\n");
  EXPECT_ERROR(trainer_options({other.c_str()}), UsageError, "b.yaml:2: fp16: expected true");
}

TEST(TrainerFlags, WhatIsDerivedIsInTheRecord) {
  const auto found = trainer_options({"--eval-strategy", "steps", "--logging-steps", "50"});
  EXPECT_EQ(flag(found, "--eval-steps"), "50");
  EXPECT_EQ(flag(found, "--learning-rate"), "0.001");
  EXPECT_EQ(flag(found, "--do-eval"), "true");
  EXPECT_EQ(flag(found, "--profile"), "parity");
  EXPECT_EQ(flag(found, "--lr-scheduler-type"), "constant");
  EXPECT_EQ(found.notes, (std::vector<std::string>{"eval_steps: not set, logging_steps used: 50"}));
}

TEST(TrainerFlags, StepsBetweenCheckpointsAreWantedWithoutTheStrategyToo) {
  const auto strategies = [](const std::vector<const char*>& flags) {
    const auto found = trainer_options(flags);
    return flag(found, "--save-strategy") + " " + flag(found, "--logging-strategy") + " " +
           flag(found, "--eval-strategy");
  };
  EXPECT_EQ(strategies({}), "no no no");
  EXPECT_EQ(strategies({"--save-steps", "20", "--output-dir", "out"}), "steps no no");
  EXPECT_EQ(strategies({"--eval-steps", "9", "--logging-steps", "3"}), "no steps steps");
  EXPECT_EQ(strategies({"--save-steps", "20", "--save-strategy", "epoch", "--output-dir", "out"}),
            "epoch no no");
}

TEST(TrainerFlags, FlagsOfTransformersAreKnownByName) {
  EXPECT_ERROR(trainer_options({"--fsdp", "full_shard"}), UsageError,
               "--fsdp: belongs to transformers and is not supported here");
  EXPECT_ERROR(trainer_options({"--push_to_hub"}), UsageError, "--push-to-hub: belongs to");
  const auto found = trainer_options({"--push_to_hub", "false", "--remove_unused_columns", "false",
                                      "--evaluation_strategy=epoch"});
  EXPECT_EQ(found.training.eval_strategy, IntervalStrategy::kEpoch);
  EXPECT_EQ(found.notes,
            (std::vector<std::string>{"evaluation_strategy: old name of eval_strategy",
                                      "remove_unused_columns: accepted, without effect: "
                                      "data_collator defines the contents of a batch"}));
  EXPECT_EQ(parse<TrainerRunOptions>({"--help"}).text.find("--fsdp"), std::string::npos);
  EXPECT_ERROR(trainer_options({"--fsd"}), UsageError, "--fsd: no such option");
  EXPECT_ERROR(trainer_options({"--learning-rat", "1"}), UsageError,
               "did you mean --learning-rate?");
}

TEST(TrainerFlags, ExactSumsAreThoseOfTheTrainer) {
  const auto found = trainer_options({"--sums", "exact", "--micro-batch", "8"});
  EXPECT_EQ(found.training.sums, Sums::kExact);
  EXPECT_EQ(found.training.micro_batch, 8);
  EXPECT_EQ(trainer_options({}).training.sums, Sums::kFast);
  EXPECT_ERROR(trainer_options({"--profile", "hf-defaults", "--sums", "exact"}), UsageError,
               "sums exact: the batches of this accelerator_config depend on the number of");
  EXPECT_ERROR(trainer_options({"--sums", "exact", "--micro-batch", "0"}), UsageError,
               "micro_batch: expected a number from 1 to 10000000, got 0");
}

TEST(TrainerFlags, TheRestIsCheckedTogether) {
  EXPECT_ERROR(trainer_options({"--fp16", "--bf16"}), UsageError, "fp16: bf16 is set too");
  EXPECT_ERROR(trainer_options({"--save-strategy", "epoch"}), UsageError,
               "output_dir: expected a folder for the checkpoints");
  EXPECT_ERROR(trainer_options({"-b", "0"}), UsageError,
               "per_device_train_batch_size: expected a number from 1 to 10000000, got 0");
  EXPECT_ERROR(trainer_options({"--epochs", "3x"}), UsageError, "--num-train-epochs: expected");
}

TEST(TrainerFlags, OtherStagesHaveNoneOfThem) {
  for (const char* name : {"--learning-rate", "--args-file", "--fsdp", "--no-do-eval"}) {
    EXPECT_ERROR(parse({name, "1"}), UsageError, fmt::format("{}: no such option", name));
  }
  for (const char* name : {"--scheduler", "--batch-mode", "--scale-lr", "--loader-mode"}) {
    EXPECT_ERROR(trainer_options({name, "1"}), UsageError, fmt::format("{}: no such", name));
  }
}

int main_with(const std::function<void(const SingleOptions&)>& run) {
  std::string program = "stage0_single_gpu";
  char* arguments[] = {program.data()};
  return run_main<SingleOptions>(1, arguments, run);
}

TEST(RunMain, StartsTwoProcessesWhereThereIsNoGpuAndAsManyAsAskedFor) {
  int nprocs = 0;
  const auto look = [&](const SpawnedOptions& options) { nprocs = options.nprocs; };
  std::string program = "stage2_ddp_spawn";
  std::string device = "--device=cpu";
  std::string three = "--nprocs=3";
  char* arguments[] = {program.data(), device.data(), three.data()};
  EXPECT_EQ(run_main<SpawnedOptions>(2, arguments, look), 0);
  EXPECT_EQ(nprocs, 2);
  EXPECT_EQ(run_main<SpawnedOptions>(3, arguments, look), 0);
  EXPECT_EQ(nprocs, 3);
}

// A rank that nobody launched, whatever started this test.
class RunMainThatSpawnsOrJoins : public testing::Test {
 protected:
  void SetUp() override { forget(); }
  void TearDown() override { forget(); }

  static int main_with(std::vector<std::string> arguments, bool& launched) {
    arguments.insert(arguments.begin(), "stage4_ddp_amp");
    std::vector<char*> pointers;
    for (auto& argument : arguments) pointers.push_back(argument.data());
    const auto look = [&](const AmpOptions& options) { launched = options.launched; };
    return run_main<AmpOptions>(static_cast<int>(pointers.size()), pointers.data(), look);
  }

 private:
  static void forget() {
    for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) unsetenv(name);
  }
};

TEST_F(RunMainThatSpawnsOrJoins, SpawnsWhenNobodyLaunchedIt) {
  bool launched = true;
  EXPECT_EQ(main_with({"--nprocs=2"}, launched), 0);
  EXPECT_FALSE(launched);
}

TEST_F(RunMainThatSpawnsOrJoins, JoinsTheRanksOfALauncher) {
  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "2", 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", "29500", 1);
  bool launched = false;
  EXPECT_EQ(main_with({}, launched), 0);
  EXPECT_TRUE(launched);
  testing::internal::CaptureStderr();
  EXPECT_EQ(main_with({"--nprocs=2"}, launched), 2);
  EXPECT_NE(testing::internal::GetCapturedStderr().find(
                "--nprocs: the ranks have been started by env; hint: omit --nprocs"),
            std::string::npos);
}

void expect_refused(const std::function<int()>& run, const std::string& message) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(run(), 2);
  const std::string got = testing::internal::GetCapturedStderr();
  EXPECT_NE(got.find(message), std::string::npos) << got;
}

TEST_F(RunMainThatSpawnsOrJoins, RefusesWhatOnlyTheOtherWayTakes) {
  bool launched = false;
  const std::string meeting = "--init-method=tcp://127.0.0.1:29500";
  expect_refused([&] { return main_with({meeting}, launched); },
                 "--init-method: no launcher has started the other ranks; hint: give "
                 "--rank and --world-size too");
  expect_refused(
      [&] {
        return main_with({"--rank=0", "--world-size=1", meeting, "--master-port=29501"}, launched);
      },
      "--master-port: the ranks have been started by you, with --rank and --world-size");
}

TEST_F(RunMainThatSpawnsOrJoins, NamesItselfInTheCommandsItProposes) {
  bool launched = false;
  setenv("RANK", "0", 1);
  expect_refused([&] { return main_with({}, launched); }, "--no-python stage4_ddp_amp");
}

TEST_F(RunMainThatSpawnsOrJoins, TakesRankAndWorldSizeAsALaunch) {
  bool launched = false;
  EXPECT_EQ(
      main_with({"--rank=0", "--world-size=1", "--init-method=tcp://127.0.0.1:29500"}, launched),
      0);
  EXPECT_TRUE(launched);
}

class RunMainOfATrainer : public RunMainThatSpawnsOrJoins {
 protected:
  // What it wrote on the standard error.
  static std::string main_with(std::vector<std::string> arguments, TrainerRunOptions& found) {
    arguments.insert(arguments.begin(), "stage6_trainer");
    std::vector<char*> pointers;
    for (auto& argument : arguments) pointers.push_back(argument.data());
    testing::internal::CaptureStderr();
    run_main<TrainerRunOptions>(static_cast<int>(pointers.size()), pointers.data(),
                                [&](const TrainerRunOptions& options) { found = options; });
    return testing::internal::GetCapturedStderr();
  }
};

TEST_F(RunMainOfATrainer, IsOneProcessUnlessTheConfigurationFileSaysMore) {
  TrainerRunOptions found;
  main_with({"--device=cpu"}, found);
  EXPECT_EQ(found.nprocs, 1);
  const TemporaryFolder folder;
  const std::string file = "--config-file=" + folder.write("a.yaml",
                                                           "distributed_type: MULTI_CPU\n"
                                                           "num_processes: 3\n");
  main_with({"--device=cpu", file}, found);
  EXPECT_EQ(found.nprocs, 3);
  main_with({"--device=cpu", file, "--num-processes=2"}, found);
  EXPECT_EQ(found.nprocs, 2);
}

TEST_F(RunMainOfATrainer, TheMainProcessAloneSaysTheNotes) {
  const std::string note = "evaluation_strategy: old name of eval_strategy\n";
  TrainerRunOptions found;
  EXPECT_EQ(main_with({"--evaluation-strategy=epoch"}, found), note);
  EXPECT_EQ(main_with({"--evaluation-strategy=epoch", "--quiet"}, found), "");
  setenv("WORLD_SIZE", "2", 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", "29500", 1);
  setenv("RANK", "1", 1);
  EXPECT_EQ(main_with({"--evaluation-strategy=epoch"}, found), "");
  setenv("RANK", "0", 1);
  EXPECT_EQ(main_with({"--evaluation-strategy=epoch"}, found), note);
}

TEST(RunMain, TurnsErrorsIntoExitCodes) {
  const auto throws = [](const auto& error) {
    return main_with([&](const SingleOptions&) { throw error; });
  };
  EXPECT_EQ(main_with([](const SingleOptions&) {}), 0);
  EXPECT_EQ(throws(std::runtime_error("x")), 1);
  EXPECT_EQ(throws(std::bad_alloc()), 1);
  EXPECT_EQ(throws(UsageError::conflict("a", "b", "c")), 2);
  EXPECT_EQ(throws(DataError::missing_file("a", "b")), 3);
  EXPECT_EQ(throws(DistributedError::of("a", "b", "c", "d")), 4);
  EXPECT_EQ(throws(NumericError::of("a", "b", "c", "d")), 5);
}

}  // namespace
}  // namespace mnist
