// SPDX-License-Identifier: Apache-2.0
#include "mnist/command_line.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ladder/comm/process_group_options.h"
#include "ladder/core/error.h"
#include "ladder/core/gpus.h"
#include "ladder/core/log.h"
#include "ladder/monitor/run_settings.h"
#include "ladder/parallel/replicate_options.h"
#include "mnist/accelerated_main.h"
#include "mnist/flags.h"
#include "mnist/option_tables.h"
#include "tests/support/captured_stream.h"
#include "tests/support/expect_error.h"
#include "tests/support/option_refusals.h"
#include "tests/support/temporary_folder.h"

namespace mnist {
namespace {

using namespace ladder;
namespace fs = std::filesystem;

using Arguments = std::vector<std::string>;

Arguments words(const std::string& line) {
  std::istringstream stream(line);
  return {std::istream_iterator<std::string>(stream), {}};
}

template <typename Options = SingleOptions>
CommandLine<Options> parse(const Arguments& arguments) {
  std::vector<const char*> pointers = {"build/bin/stage0_single_gpu"};
  for (const auto& argument : arguments) pointers.push_back(argument.c_str());
  return parse_command_line<Options>(static_cast<int>(pointers.size()), pointers.data());
}
template <typename Options = SingleOptions>
CommandLine<Options> parse(const std::string& line) {
  return parse<Options>(words(line));
}

template <typename Options = SingleOptions, typename Line>
Options options(const Line& line) {
  return *parse<Options>(line).options;
}

// Command lines, and a part of the error of each.
using Refusals = std::vector<std::pair<std::string, std::string>>;

template <typename Options = SingleOptions>
void expect_refused(const Refusals& refusals) {
  for (const auto& [line, text] : refusals) {
    SCOPED_TRACE(line);
    EXPECT_ERROR(parse<Options>(line), UsageError, text);
  }
}

std::string flag(const SingleOptions& options, const std::string& name) {
  for (const auto& [key, value] : options.record.flags) {
    if (key == name) return value;
  }
  return "no such flag";
}

TEST(CommandLine, TheRecipeDecidesWhatIsNotGiven) {
  const auto found = options("");
  EXPECT_EQ(found.recipe.name, "basicnet");
  EXPECT_EQ(found.recipe.epochs, 1);
  EXPECT_EQ(found.recipe.normalize, true);
  EXPECT_EQ(options("--recipe convnet --epochs 5").recipe.epochs, 5);
  EXPECT_EQ(options("--recipe convnet").recipe.normalize, false);
  EXPECT_EQ(found.recipe.seed, 42U);
  EXPECT_EQ(found.record.stage, "stage0_single_gpu");
  EXPECT_EQ(found.device, "auto");
  EXPECT_TRUE(found.save.empty());
}

TEST(CommandLine, TakesEveryFlagIntoItsPlace) {
  const auto found = options(
      "--recipe convnet -e 5 -b 16 --lr 0.5 --seed 7 --threads 3 --augment shift --num-workers 2 "
      "--math reference --head log-softmax --width 2 --quiet --limit-train 100 --normalize "
      "--pin-memory");
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

TEST(CommandLine, TakesGpusSeparatedByCommasOrSpacesAndUnderscoresForDashes) {
  EXPECT_EQ(options("--batch_size=48").recipe.batch_size, 48);
  for (const auto& form : {Arguments{"--gpu_ids", "6,7"},
                           {"--gpu-ids", "6, 7"},
                           {"--gpu-ids", "6 7"},
                           {"--gpu-ids=6,7"},
                           {"--gpu-ids", "6", "7"},
                           {"--gpu-ids", "6", "7", "--quiet"},
                           {"--gpu", "6,", "7"},
                           {"--gpu", "6", "--gpu", "07"}}) {
    const auto found = options(form);
    EXPECT_EQ(found.gpu, (Arguments{"6", "7"})) << form.size();
    EXPECT_EQ(flag(found, "--gpu"), "6,7");
  }
}

TEST(CommandLine, SaveMayStandWithoutAName) {
  EXPECT_EQ(options("--save").save, "mnist_cnn.safetensors");
  EXPECT_EQ(options("--save --recipe convnet").save, "origin_checkpoint.safetensors");
  EXPECT_EQ(options("--save a.safetensors").save, "a.safetensors");
  for (const std::string name : {"a.pt", "a.PTH", "a.bin", "a.ckpt", "a.pkl", "a.tar"}) {
    const auto command = "tools/convert_checkpoint.py a.safetensors " + name;
    EXPECT_ERROR(options("--save " + name), UsageError, "--save: expected", command);
  }
  EXPECT_EQ(options<AmpOptions>("--save").save, "ddp_checkpoint.safetensors");
}

TEST(CommandLine, RecordsEveryFlagAsResolved) {
  const auto found = options("--epochs 2 --no-normalize --save");
  EXPECT_EQ(flag(found, "--epochs"), "2");
  EXPECT_EQ(flag(found, "--lr"), "0.001");
  EXPECT_EQ(flag(found, "--normalize"), "false");
  EXPECT_EQ(flag(found, "--recipe"), "basicnet");
  EXPECT_EQ(flag(found, "--save"), "mnist_cnn.safetensors");
}

// Each row of the tables, by its flag.
TEST(CommandLine, RefusesWhatARowExcludes) {
  int values = expect_refusals<RecipeOptions>(tables::kRecipe);
  values += expect_refusals<DataOptions>(tables::kData);
  values += expect_refusals<SingleOptions>(tables::kFiles);
  values += expect_refusals<ProcessGroupOptions>(tables::group());
  values += expect_refusals<ProcessGroupOptions>(tables::kLauncher);
  values += expect_refusals<ProcessOptions>(tables::kProcesses);
  values += expect_refusals<SumOptions>(tables::sums());
  values += expect_refusals<SumOptions>(tables::kCheck);
  values += expect_refusals<SnapshotOptions>(tables::kSnapshot);
  values += expect_refusals<PipelineOptions>(tables::kPipeline);
  values += expect_refusals<FullyShardedOptions>(tables::kFullySharded);
  values += expect_refusals<AcceleratorOptions>(accelerator_option_table());
  EXPECT_GT(values, 250);
}

TEST(CommandLine, RefusesUnknownNamesAndNamesTheNearest) {
  expect_refused({{"--epoch 3", "--epoch: no such option; hint: did you mean --epochs?"},
                  {"--zzzzzzzzzzzz", "no such option; hint: --help lists them all"},
                  {"--batch=3", "--batch=3: no such option; hint: did you mean --batch-size?"},
                  {"--learning-rate=0.1", "hint: did you mean --lr?"},
                  {"mnist", "mnist: no such option"},
                  {"--recipe basicnets", "--recipe: expected one of basicnet, convnet, stack, got"},
                  {"--recipe basicnets", "did you mean basicnet?"}});
  for (const char* other :
       {"--device-ids", "--backend", "--batch-mode", "--nprocs", "--rank", "--precision"}) {
    EXPECT_ERROR(parse(other + std::string(" 1")), UsageError, ": no such option");
  }
}

TEST(CommandLine, ReadsNumbersAsTheyAreWritten) {
  EXPECT_EQ(options("--epochs 010").recipe.epochs, 10);
  EXPECT_EQ(options("--lr 0.1").recipe.lr, 0.1);
  EXPECT_EQ(options("--seed 9223372036854775807").recipe.seed, 9223372036854775807U);
  expect_refused({{"--epochs 0x10",
                   "--epochs: expected a whole number from 0 to 1000000000, got '0x10'; hint: "
                   "leave it unset for the default: epochs to train"},
                  {"--seed -1",
                   "--seed: expected a whole number >= 0, got '-1'; hint: the default "
                   "is 42"},
                  {"--threads 99999999999", "--threads: expected a whole number from 0 to 2147483"},
                  {"--gpu 0,x", "--gpu: expected numbers separated by commas"},
                  {"--gpu 6,,7", "--gpu: expected numbers separated by commas"}});
}

TEST(CommandLine, NamesTheFlagThatNeedsAGpu) {
  expect_refused({{"--device gpu", "--device: expected auto, cpu, cuda or cuda:N, got 'gpu'"}});
  if (machine_gpu_count() > 0) GTEST_SKIP() << "this machine has a GPU";
  expect_refused({{"--device cuda:1", "--device cuda:1: this machine has no GPU; hint: use"}});
  expect_refused({{"--tf32", "--tf32: this machine has no GPU; hint: omit it"}});
  expect_refused<SpawnedOptions>(
      {{"--backend nccl", "--backend nccl: this machine has no GPU; hint: use --backend gloo"}});
}

TEST(CommandLine, AFlagWithoutAValueMayHaveOne) {
  EXPECT_FALSE(options("--quiet=false").record.quiet);
  EXPECT_EQ(options("--no-normalize --normalize").recipe.normalize, true);
  expect_refused({{"--quiet=maybe", "--quiet: expected true or false, got 'maybe'"},
                  {"--no-normalize=maybe", "--normalize: expected true or false"}});
}

TEST(CommandLine, NamesTheConverterOfPicklesToLoad) {
  const TemporaryFolder folder;
  for (const char* magic : {"PK\3\4 ...", "\x80\2 ..."}) {
    const std::string path = folder.write("a.pt", magic);
    EXPECT_ERROR(parse("--load " + path), DataError, path + ": expected a safetensors file",
                 "tools/convert_checkpoint.py " + path + " " + folder.file("a.safetensors"));
  }
  const std::string other = folder.write("b.pt", "no pickle");  // the library refuses it
  EXPECT_EQ(options("--load " + other).load, other);
}

template <typename Options>
void expect_not_set(const std::vector<Arguments>& lines) {
  for (const auto& arguments : lines) {
    EXPECT_ERROR(parse<Options>(arguments), UsageError, ": expected a value, not set; hint: is a");
  }
}

TEST(CommandLine, RefusesAnEmptyVariableOfAShell) {
  expect_not_set<SingleOptions>({{"--load", ""},
                                 {"--metrics", ""},
                                 {"--gpu", ""},
                                 {"--metrics", "--quiet"},
                                 {"--metrics", "--no-such"},
                                 {"-e", "--quiet"},
                                 {"--save", ""},
                                 {"--pin_memory="}});
  expect_not_set<TrainerRunOptions>({{"--output-dir", "--quiet"},
                                     {"--output-dir=", "--no-do-eval"},
                                     {"--output-dir", ""},
                                     {"--run-name", "--quiet"},
                                     {"--bf16", ""}});
}

TEST(CommandLine, AWordIsNoPath) {
  expect_refused<AcceleratedOptions>(
      {{"--save=None", "--save: expected a path, got 'None'; hint: omit it"},
       {"--resume=--quiet", "--resume: expected a path, got '--quiet'; hint: omit it"}});
  expect_refused<TrainerRunOptions>({{"--output-dir no", "--output-dir: expected a path"}});
  EXPECT_EQ(options("--save ./no").save, "./no");
}

TEST(CommandLine, NoOutputWritesOverAnotherFileOfTheRun) {
  const TemporaryFolder folder;
  const auto before = fs::current_path();
  fs::current_path(folder.path());
  const auto labels = folder.write("data/t10k-labels-idx1-ubyte.gz", "labels");
  folder.write("w", "weights");
  folder.write("h.yaml", "lr: 0.1");
  folder.write("h.json", "{}");
  fs::create_symlink("a.json", "link");
  for (const char* path : {"p/checkpoints/checkpoint_0", "o/runs", "s"}) {
    fs::create_directories(path);
  }
  fs::create_symlink("p/checkpoints", "same");
  fs::create_hard_link(folder.write("p/checkpoints/checkpoint_0/sampler.json", "{}"), "hard_link");
  testing::internal::CaptureStdout();  // into a file
  const auto output = fs::read_symlink("/proc/self/fd/1").string();
  expect_refused<AcceleratedOptions>(
      {{"--save a --metrics a", "--metrics a: names the same file as --save"},
       {"--metrics a.json --trace " + folder.path() + "/./a.json", "the same file as --metrics"},
       {"--metrics a.rank1.json --trace a.json", "the same file as --metrics"},
       {"--metrics a.json --trace b.json --save b.rank3.json",
        "--trace b.json: names the same file as --save"},
       {"--metrics m.jsonl --fingerprint 1 --save m.rank0.jsonl", "the same file as --save"},
       {"--metrics m --fingerprint 1 --save m.rank1.jsonl",
        "--fingerprint m.jsonl: names the same"},
       {"--metrics t.rank1 --trace t", "names the same file as --"},
       {"--metrics link --save a.json", "the same file as --save"},
       {"--load w --metrics w", "names the file that is read as --load"},
       {"--metrics " + output, "as standard output"},
       {"--data-root data --metrics " + labels, "is a file of the run in --data-root"},
       {"--hparams h.yaml --metrics h.yaml", "the file that is read as --hparams"},
       {"--config-file c --metrics ./c", "the file that is read as --config-file"},
       {"--resume p/checkpoints/checkpoint_0 --metrics same/checkpoint_0/sampler.json",
        "is a file of the run in --resume"},
       {"--resume p/checkpoints/checkpoint_0 --metrics hard_link", "of the run in --resume"},
       {"--project-dir p --save p/checkpoints/a.json", "of the run in --project-dir"}});
  expect_refused<TrainerRunOptions>(
      {{"--output-dir o --metrics o/train_results.json", "is a file of the run in --output-dir"},
       {"--output-dir p/../o --save o/runs/a", "is a file of the run in --output-dir"},
       {"--args-file h.json --trace h.json", "the file that is read as --args-file"}});
  expect_refused<LaunchedOptions>(
      {{"--snapshot s --metrics s/progress.json", "is a file of the run in --snapshot"}});
  testing::internal::GetCapturedStdout();
  for (const char* line :
       {"--data-root data --save w", "--load w --save w", "--metrics /dev/null --trace a.json",
        "--project-dir p --metrics p/run.jsonl --save p/w", "--resume auto --project-dir p"}) {
    EXPECT_NO_THROW(parse<AcceleratedOptions>(std::string(line))) << line;
  }
  fs::current_path(before);
}

TEST(CommandLine, RefusesWhatHasNoEffectTogether) {
  expect_refused(
      {{"--epochs 2 -e 3", "--epochs: At Most 1 required but received 2; hint: give"},
       {"--trace nowhere/a.json", "nowhere"},
       {"--depth 8", "--depth: this network has layers of its own; hint: add --recipe"},
       {"--width 2 --network n.pt2", "--width: the network of a file has a width of its"},
       {"--recipe stack --data-root /tmp", "--data-root: the images of --recipe stack"},
       {"--fingerprint 1", "--fingerprint: expected --metrics PATH.jsonl"}});
  EXPECT_EQ(options("--recipe stack").recipe.depth, 8);
  EXPECT_EQ(options("--recipe stack --depth 2").recipe.depth, 2);
  EXPECT_EQ(options("--fingerprint 1 --metrics a.jsonl").monitor.fingerprint_beside, "a.jsonl");
  expect_refused<AmpOptions>({{"--scale-lr linear", "hint: add --batch-mode per-device"}});
  expect_refused<FullyShardedRunOptions>(
      {{"--check-replicas 2", "--check-replicas: there are no replicas: each rank has other"}});
  expect_refused<PipelineRunOptions>(
      {{"--network n.pt2", "--network: a network of a file has no"}});
  expect_refused<ReplicaOptions>(
      {{"--device cpu --device-ids 0", "--device-ids: --device names devices already"}});
  expect_refused<TrainerRunOptions>(
      {{"--resume c --no-do-train", "--resume: it needs a training"},
       {"--trace t.json --no-do-train", "--trace: it needs a training"},
       {"--metrics m.jsonl --no-do-train", "--metrics: it needs a training"}});
}

TEST(CommandLine, RanksCompareWhatDefinesTheRun) {
  const auto settings = [](const std::string& line) {
    return options<LaunchedOptions>(line).process_group.settings;
  };
  const auto usual = settings("");
  EXPECT_EQ(usual.at("--seed"), "42");
  EXPECT_EQ(usual.at("--head"), "log-softmax");
  for (const char* line : {"--seed 1", "--batch-size 65", "--limit-train 64", "--augment shift",
                           "--snapshot a", "--save a"}) {
    EXPECT_NE(settings(line), usual) << line;
  }
  EXPECT_EQ(settings("--batch-size 64 --epochs 1"), usual);
  EXPECT_EQ(settings("--snapshot a"), settings("--snapshot b"));
  EXPECT_EQ(settings("--save a"), settings("--save"));
  EXPECT_EQ(settings("--metrics a --num-workers 2 --threads 1 --quiet"), usual);
  const auto accelerated = options<AcceleratedOptions>("--seed 3");
  EXPECT_EQ(accelerated.accelerator.process_group.settings.at("--seed"), "3");
  EXPECT_TRUE(accelerated.process_group.settings.contains("--total-limit"));
  setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4", 1);
  const auto accumulates = options<AcceleratedOptions>("--gradient-accumulation-steps 2");
  unsetenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS");
  EXPECT_EQ(settings_to_json(accumulates.monitor.settings)["--gradient-accumulation-steps"], "4");
  const auto trainer = options<TrainerRunOptions>("");
  EXPECT_TRUE(trainer.process_group.settings.contains("--save-total-limit"));
}

struct Sizes {
  std::int64_t depth = 1;
  std::int64_t warm_up = 2;
  int threads = 3;
  std::string out;
};
constexpr Option<Sizes> kSizes[] = {
    option<&Sizes::depth>(Effect::kWeights, "depth", "N", "layers", {1.0}),
    option<&Sizes::warm_up>(Effect::kTraining, "warm_up", "N", "steps of the warm-up", {0.0}),
    option<&Sizes::threads>(Effect::kOwn, "threads", "N", "threads"),
    option<&Sizes::out>(Effect::kFolder, "out", "FOLDER", "folder of the results")};

// A new option needs its row alone.
TEST(CommandLine, TheEffectOfAnOptionDecidesWhoComparesIt) {
  Sizes sizes;
  Flags flags("program");
  flags.add(kSizes, sizes);
  EXPECT_EQ(settings_of_ranks(flags.settings()),
            (std::map<std::string, std::string>{
                {"--depth", "1"}, {"--out", "unset"}, {"--warm-up", "2"}}));
  const auto saved = settings_to_json(flags.settings());
  EXPECT_EQ(saved, nlohmann::json({{"--depth", "1"}, {"--warm-up", "2"}}));
  CapturedStream stream;
  const Log log({.stream = stream.get()});
  sizes.warm_up = 5;
  sizes.threads = 4;
  compare_settings(saved, flags.settings(), "progress.json", log);
  EXPECT_EQ(stream.text(), "progress.json: --warm-up was 2, and is 5 from here on\n");
  sizes.depth = 2;
  EXPECT_ERROR(compare_settings(saved, flags.settings(), "progress.json", log), UsageError,
               "progress.json: it was written with --depth=1, and this run has --depth=2");
}

// Under whatever path; the SHA-256 is that of Python's hashlib.
TEST(CommandLine, RanksCompareTheContentsOfTheFileToLoad) {
  const TemporaryFolder folder;
  folder.write("a", "weights");
  const auto settings_of = [](const std::string& path) {
    return options<PipelineRunOptions>(Arguments{"--load", path}).process_group.settings;
  };
  EXPECT_EQ(settings_of(folder.file("a")).at("--load"),
            "of the file with SHA-256 9a129038d9a00aed");
  EXPECT_FALSE(settings_of(folder.file("none")).contains("--load"));
}

TEST(CommandLine, AStageHasTheFlagsOfItsOwnIdea) {
  const auto replicas =
      options<ReplicaOptions>(Arguments{"--device-ids", "0, cpu", "--output-device", "cpu"});
  EXPECT_EQ(replicas.device_ids, (Arguments{"0", "cpu"}));
  EXPECT_EQ(replicas.output_device, "cpu");
  const auto found = options<AmpOptions>(
      "--backend gloo --timeout 5 --batch-mode per-device --scale-lr sqrt --check-replicas 3 "
      "--nprocs 4 --master-port 12355 --init-method file:///tmp/a --rank 1 --world-size 2 "
      "--scheduler step --trace a.json");
  EXPECT_EQ(found.process_group.backend, "gloo");
  EXPECT_EQ(found.process_group.timeout, std::chrono::seconds(5));
  EXPECT_EQ(found.batch_mode, BatchMode::kPerDevice);
  EXPECT_EQ(found.recipe.scale_lr, LrScaling::kSqrt);
  EXPECT_EQ(found.recipe.scheduler, "step");
  EXPECT_EQ(found.replicate.check_replicas, 3);
  EXPECT_EQ(found.nprocs, 4);
  EXPECT_EQ(found.master_port, 12355);
  EXPECT_EQ(found.process_group.init_method, "file:///tmp/a");
  EXPECT_EQ(found.process_group.rank, 1);
  EXPECT_EQ(found.process_group.world_size, 2);
  EXPECT_EQ(found.monitor.trace, "a.json");
  EXPECT_FALSE(found.process_group.require_launcher) << "a stage that can spawn needs none";
  EXPECT_TRUE(options<LaunchedOptions>("").process_group.require_launcher);
}

// As add_backend() and add_sums() do before main().
const bool has_another_backend = backend_names().emplace("more", "never").second;
const bool has_other_sums = (sum_names().emplace_back("other", ""), true);

TEST(CommandLine, TakesABackendAndSumsThatTheProgramAdds) {
  EXPECT_TRUE(has_another_backend && has_other_sums);
  EXPECT_EQ(options<AcceleratedOptions>("--sums other").accelerator.replicate.sums, "other");
  EXPECT_EQ(options<SpawnedOptions>("--backend more").process_group.backend, "more");
  EXPECT_EQ(options<AcceleratedOptions>("--backend more").accelerator.process_group.backend,
            "more");
}

TEST(CommandLine, PrecisionIsThatOfTheDeviceUnlessOneIsNamed) {
  const auto precision = [](const std::string& line) {
    return options<AmpOptions>(line).precision;
  };
  EXPECT_EQ(precision(""), std::nullopt);
  EXPECT_EQ(precision("--precision auto"), std::nullopt);
  EXPECT_EQ(precision("--precision fp32"), Precision::kFp32);
  EXPECT_EQ(precision("--precision bf16"), Precision::kBf16);
  EXPECT_EQ(precision("--precision fp16"), Precision::kFp16);
}

TEST(CommandLine, SyncBatchNormIsOnUnlessSwitchedOff) {
  for (const std::string line : {"", "--sync-bn", "--no-sync-bn"}) {
    const auto found = options<AmpOptions>(line);
    EXPECT_EQ(found.sync_bn, line != "--no-sync-bn");
    EXPECT_EQ(flag(found, "--sync-bn"), found.sync_bn ? "true" : "false");
  }
}

TEST(CommandLine, SumsAreInFloatUnlessExactOnesAreNamed) {
  EXPECT_EQ(options<SpawnedOptions>("").replicate.sums, "fast");
  EXPECT_EQ(options<SpawnedOptions>("--sums fast").micro_batch(), 0);
  EXPECT_EQ(options<SpawnedOptions>("").micro_batch(), 0);
  EXPECT_EQ(options<SpawnedOptions>("--sums exact").micro_batch(), 16);
  const auto found = options<LaunchedOptions>("--sums exact --micro-batch 8 --check-replicas 3");
  EXPECT_EQ(found.replicate.micro_batch, 8);
  EXPECT_EQ(found.replicate.check_replicas, 3);
  EXPECT_EQ(flag(found, "--sums"), "exact");
  EXPECT_EQ(flag(found, "--micro-batch"), "8");
  const auto accelerated = options<AcceleratedOptions>("--sums exact --micro-batch 4");
  EXPECT_EQ(accelerated.accelerator.replicate.sums, "exact");
  EXPECT_EQ(accelerated.accelerator.replicate.micro_batch, 4);
  EXPECT_EQ(options<AcceleratedOptions>("").accelerator.replicate.sums, "fast");
}

// What else in a run depends on the number of ranks.
TEST(CommandLine, ExactSumsRefuseWhatChangesWithTheRanks) {
  const std::string batches = "depend on the number of ranks";
  const std::string sync = "--sums exact: SyncBatchNorm adds floats over the ranks";
  const std::string masks =
      "the dropout masks depend on the number of ranks; hint: add --math fast";
  expect_refused<SpawnedOptions>({{"--sums exact --batch-mode per-device", batches},
                                  {"--sums exact --math reference", masks}});
  expect_refused<AmpOptions>({{"--sums exact --profile ddp-practice --no-sync-bn", batches},
                              {"--sums exact --recipe convnet", sync},
                              {"--sums exact --sync-bn", sync + ", so the sum depends on them"}});
  expect_refused<AcceleratedOptions>({{"--sums exact --loader-mode per-process", batches},
                                      {"--sums exact --loader-mode split-batches", batches},
                                      {"--sums exact --math reference", masks}});
  expect_refused<TrainerRunOptions>({{"--sums exact --math reference", masks}});
  expect_refused<FullyShardedRunOptions>(
      {{"--sums exact", "--sums exact: no rank has a whole gradient to add in integers"}});
  EXPECT_FALSE(options<AmpOptions>("--sums exact --recipe convnet --no-sync-bn").sync_bn);
  EXPECT_EQ(options<AmpOptions>("--sums exact").micro_batch(), 16) << "no BatchNorm";
  EXPECT_NO_THROW(parse<SpawnedOptions>("--sums exact --math reference --recipe convnet"))
      << "no dropout";
}

TEST(CommandLine, MicroBatchesBelongToExactSums) {
  expect_refused<SpawnedOptions>(
      {{"--micro-batch 8",
        "--micro-batch: sums in float have no micro-batches; hint: add --sums"}});
  expect_refused<TrainerRunOptions>(
      {{"--micro-batch 8", "micro_batch: sums in float have no micro-batches; hint: set sums"}});
  expect_refused<AcceleratedOptions>(
      {{"--sums fast --micro-batch 8", "--micro-batch: sums in float"}});
  expect_refused({{"--sums exact", "--sums: no such option"}});
}

TEST(CommandLine, AProfileIsAsIfItsFlagsHadBeenTypedBeforeAllOthers) {
  const auto found = options<AmpOptions>("--profile ddp-practice");
  EXPECT_EQ(found.recipe.name, "convnet");
  EXPECT_EQ(found.recipe.epochs, 3);
  EXPECT_EQ(found.recipe.batch_size, 32);
  EXPECT_EQ(found.recipe.lr, 1e-4);
  EXPECT_EQ(found.batch_mode, BatchMode::kPerDevice);
  EXPECT_EQ(flag(found, "--batch-mode"), "per-device");
  EXPECT_EQ(flag(found, "--profile"), "ddp-practice");
  const auto before = options<AmpOptions>("--batch-mode global --profile ddp-practice");
  EXPECT_EQ(before.batch_mode, BatchMode::kGlobal);
  EXPECT_EQ(before.recipe.epochs, 3);
  const auto after = options<AmpOptions>("--profile ddp-practice -e 1");
  EXPECT_EQ(after.batch_mode, BatchMode::kPerDevice);
  EXPECT_EQ(after.recipe.epochs, 1);
}

TEST(CommandLine, ConvnetPrintsTheLinesOfItsTutorial) {
  EXPECT_EQ(options("").monitor.epoch_line, "");
  const auto monitor = options("--recipe convnet").monitor;
  EXPECT_EQ(monitor.epoch_line, "begin training of epoch {epoch}/{epochs}");
  EXPECT_EQ(monitor.testing_line, "begin testing");
}

TEST(CommandLine, HelpAndVersionAreOnlyText) {
  EXPECT_FALSE(parse("--help").options.has_value());
  // FORM=DEFAULT where the flag needs a value; FORM alone where it may stand without one.
  for (const char* row : {"--fingerprint N=0 ", "--seed N=42 ", "--save PATH "}) {
    EXPECT_NE(parse("--help").text.find(row), std::string::npos) << row;
  }
  EXPECT_NE(parse("--version").text.find("libtorch       2."), std::string::npos);
}

TEST(SnapshotFlags, AreOfStageThreeAndBelongTogether) {
  const auto found = options<LaunchedOptions>("--snapshot runs/snapshot --snapshot-steps 100");
  EXPECT_EQ(found.snapshot.path, "runs/snapshot");
  EXPECT_EQ(found.snapshot.steps, 100);
  EXPECT_EQ(options<LaunchedOptions>("--snapshot a").snapshot.steps, 0) << "one per epoch";
  expect_refused<LaunchedOptions>({{"--snapshot-steps 5", "expected --snapshot FOLDER"}});
  expect_refused<SpawnedOptions>({{"--snapshot a", "no such option"}});
  expect_refused<AmpOptions>({{"--snapshot a", "no such option"}});
}

TEST(ResumeFlag, AutoNeedsAProjectAndAllowsFirstWeights) {
  const auto found =
      options<AcceleratedOptions>("--resume auto --project-dir p --load first.safetensors");
  EXPECT_TRUE(found.resume);
  EXPECT_EQ(found.resume_from, "auto");
  EXPECT_EQ(options<AcceleratedOptions>("--resume ./auto").resume_from, "./auto");
  expect_refused<AcceleratedOptions>(
      {{"--resume auto", "--resume: expected --project-dir FOLDER"},
       {"--resume --project-dir p --load a", "--load: --resume loads the weights of its check"}});
}

// --- A stage that trains by a Trainer ---

template <typename Line>
TrainerRunOptions trainer_options(const Line& line) {
  return options<TrainerRunOptions>(line);
}

// `expected` is a JSON object of some of the arguments.
void expect_arguments(const TrainingArguments& got, const std::string& expected) {
  const auto all = to_json(got);
  const auto some = nlohmann::ordered_json::parse(expected);
  for (const auto& [name, value] : some.items()) EXPECT_EQ(all.at(name), value) << name;
}

TEST(TrainerFlags, ParityIsTheRecipeAsOtherStagesTrainIt) {
  const auto found = trainer_options("");
  EXPECT_TRUE(found.parity);
  EXPECT_TRUE(found.notes.empty());
  EXPECT_EQ(found.training.accelerator_config.mode(), LoaderMode::kGlobal);
  expect_arguments(found.training, R"({
      "num_train_epochs": 1.0, "per_device_train_batch_size": 64, "per_device_eval_batch_size": 64,
      "learning_rate": 1e-3, "lr_scheduler_type": "constant", "max_grad_norm": 0.0,
      "save_strategy": "no", "logging_strategy": "no", "eval_strategy": "no", "output_dir": "",
      "do_train": true, "do_eval": true, "sums": "fast"})");
  const auto convnet = trainer_options("--recipe convnet");
  EXPECT_EQ(convnet.recipe.lr, 1e-4);
  expect_arguments(convnet.training, R"({
      "num_train_epochs": 3.0, "per_device_train_batch_size": 32, "per_device_eval_batch_size": 32,
      "learning_rate": 1e-4})");
}

TEST(TrainerFlags, ParityLeavesTheOptimizerToTheRecipe) {
  for (const std::string line : {"--optim sgd", "--weight-decay 0.5", "--adam-beta1 0.5",
                                 "--adam-beta2 0.5", "--adam-epsilon 0.5"}) {
    expect_refused<TrainerRunOptions>({{line, ": with --profile parity the optimizer is the rec"}});
    EXPECT_NO_THROW(trainer_options(line + " --profile none"));
    const auto name = line.substr(0, line.find(' '));
    EXPECT_EQ(flag(trainer_options(""), name), "recipe");
    EXPECT_NE(flag(trainer_options("--profile none"), name), "recipe");
  }
}

TEST(TrainerFlags, HfDefaultsAreTheExampleOverThePackage) {
  const auto found = trainer_options("--profile=hf-defaults");
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
  EXPECT_EQ(to_json(trainer_options("--profile none").training),
            to_json({.do_train = true, .do_eval = true}))
      << "no profile: the package, but it trains";
}

TEST(TrainerFlags, EveryArgumentIsAFlagWithDashesOrUnderscores) {
  const std::string help = parse<TrainerRunOptions>("--help").text;
  const auto defaults = to_json({});
  for (const auto& [name, value] : defaults.items()) {
    std::string dashes = "--" + name;
    std::replace(dashes.begin(), dashes.end(), '_', '-');
    EXPECT_NE(help.find(dashes), std::string::npos) << dashes;
    EXPECT_NE(flag(trainer_options(""), dashes), "no such flag");
  }
}

TEST(TrainerFlags, FlagsOfOtherStagesAreAliasesAndAgreeWithWhatOthersRead) {
  const auto found = trainer_options(
      "--num-train-epochs 1.5 -b 16 --eval-batch-size 8 --lr 0.5 --seed 7 --device cpu --threads 2 "
      "--quiet --config-file a.yaml --backend gloo --timeout 5 --num-workers 3 --use-cpu --resume "
      "--pin-memory");
  expect_arguments(found.training, R"({
      "num_train_epochs": 1.5, "per_device_train_batch_size": 16, "per_device_eval_batch_size": 8,
      "learning_rate": 0.5, "dataloader_num_workers": 3, "ddp_backend": "gloo", "ddp_timeout": 5,
      "seed": 7, "resume_from_checkpoint": "true"})");
  EXPECT_EQ(found.recipe.epochs, 2);
  EXPECT_EQ(found.recipe.batch_size, 16);
  EXPECT_EQ(found.recipe.eval_batch_size, 8);
  EXPECT_EQ(found.recipe.lr, 0.5);
  EXPECT_EQ(found.recipe.seed, 7U);
  EXPECT_EQ(found.data.num_workers, 3);
  const auto& accelerator = found.accelerator;
  EXPECT_EQ(accelerator.device, "cpu");
  EXPECT_EQ(accelerator.threads, 2);
  EXPECT_TRUE(accelerator.quiet && found.training.use_cpu);
  EXPECT_EQ(accelerator.config_file, "a.yaml");
  EXPECT_EQ(accelerator.process_group.backend, "gloo");
  EXPECT_EQ(accelerator.process_group.timeout, std::chrono::seconds(5));
  EXPECT_EQ(trainer_options("").accelerator.process_group.backend, "auto");
  EXPECT_EQ(trainer_options("-e 2").training.num_train_epochs, 2.0);
  for (const std::string name : {"a/checkpoint-1", "auto"}) {
    EXPECT_EQ(trainer_options("--resume " + name).training.resume_from_checkpoint, name);
  }
}

// A folder with a file of training arguments.
class TrainerArgsFile : public testing::Test {
 protected:
  // The flag that names it.
  std::string flag_of(const std::string& text, const std::string& name = "args.yaml") const {
    return " --args-file=" + folder_.write(name, text);
  }

  TemporaryFolder folder_;
};

// dataloader_pin_memory is true by default, as in transformers: images move to a GPU all the same.
TEST_F(TrainerArgsFile, OnlyTheFlagKeepsImagesInHostMemory) {
  EXPECT_FALSE(trainer_options("").data.pin_memory);
  EXPECT_TRUE(trainer_options("--pin-memory").data.pin_memory);
  EXPECT_TRUE(trainer_options("--dataloader-pin-memory").data.pin_memory);
  EXPECT_FALSE(trainer_options("--no-dataloader-pin-memory").data.pin_memory);
  EXPECT_FALSE(trainer_options(flag_of("dataloader_pin_memory: true\n")).data.pin_memory);
}

TEST_F(TrainerArgsFile, ComesAfterTheCommandLineAndBeforeTheProfile) {
  const auto found =
      trainer_options("--lr 0.5 --output-dir out" + flag_of("learning_rate: 0.25\n"
                                                            "per_device_train_batch_size: 16\n"
                                                            "do_eval: false\n"
                                                            "accelerator_config: {}\n"
                                                            "report_to: [jsonl, csv]\n"
                                                            "lr_scheduler_kwargs: {power: 0.5}\n"));
  expect_arguments(found.training, R"({
      "learning_rate": 0.5, "per_device_train_batch_size": 16, "per_device_eval_batch_size": 64,
      "do_eval": false, "do_train": true, "report_to": ["jsonl", "csv"],
      "lr_scheduler_type": "constant"})");
  EXPECT_EQ(found.training.accelerator_config.mode(), LoaderMode::kPerProcess);
  EXPECT_EQ(found.training.lr_scheduler_kwargs, R"({"power":0.5})");
}

TEST_F(TrainerArgsFile, OfAllArgumentsIsTheSameRunAgain) {
  const auto expect_again = [&](const std::string& line, const std::string& profile) {
    const auto first = trainer_options(line);
    const auto again = trainer_options(profile + flag_of(to_json(first.training).dump(), "a.json"));
    EXPECT_EQ(to_json(again.training), to_json(first.training));
    EXPECT_EQ(again.parity, first.parity);
  };
  expect_again("--seed 7 --output-dir out", "");
  expect_again(
      "--profile=hf-defaults --lr 0.3333333333333333 --eval-strategy steps "
      "--load-best-model-at-end --warmup-ratio 0.1 --data-seed 9",
      "--profile none");
  expect_refused<TrainerRunOptions>({{flag_of(R"({"adam_beta1": 0.8})", "other.json"),
                                      "other.json: adam_beta1: with --profile parity"}});
}

TEST_F(TrainerArgsFile, HasErrorsThatBeginWithItsLine) {
  expect_refused<TrainerRunOptions>(
      {{flag_of("seed: 1\nlearning_rat: 1\n", "a.yaml"),
        "a.yaml:2: learning_rat: no such training argument; hint: did you mean learning_rate?"},
       {flag_of("seed: 1\nfp16: maybe\n", "b.yaml"), "b.yaml:2: fp16: expected true"}});
}

TEST(TrainerFlags, MayStandAloneOrWithAValue) {
  const std::map<std::string, std::string> expected = {
      {"--bf16", R"({"bf16": true})"},
      {"--bf16 true --quiet", R"({"bf16": true})"},
      {"--bf16 False", R"({"bf16": false})"},
      {"", R"({"dataloader_pin_memory": true})"},
      {"--no-dataloader-pin-memory", R"({"dataloader_pin_memory": false})"},
      {"--no_do_eval", R"({"do_eval": false})"},
      {"--tf32", R"({"tf32": true})"},
      {"--max-steps -1", R"({"max_steps": -1})"},
      {"--label_smoothing_factor=0.1", R"({"label_smoothing_factor": 0.1})"},
      {"--report-to jsonl,csv --output-dir out", R"({"report_to": ["jsonl", "csv"]})"},
      {"--sums exact --micro-batch 8", R"({"sums": "exact", "micro_batch": 8})"}};
  for (const auto& [line, arguments] : expected) {
    SCOPED_TRACE(line);
    expect_arguments(trainer_options(line).training, arguments);
  }
}

TEST(TrainerFlags, WhatIsDerivedIsInTheRecord) {
  const auto found = trainer_options("--eval-strategy steps --logging-steps 50");
  EXPECT_EQ(flag(found, "--eval-steps"), "50");
  EXPECT_EQ(flag(found, "--learning-rate"), "0.001");
  EXPECT_EQ(flag(found, "--do-eval"), "true");
  EXPECT_EQ(flag(found, "--profile"), "parity");
  EXPECT_EQ(flag(found, "--lr-scheduler-type"), "constant");
  EXPECT_EQ(found.notes, Arguments{"eval_steps: not set, logging_steps used: 50"});
}

TEST(TrainerFlags, StepsBetweenCheckpointsAreWantedWithoutTheStrategyToo) {
  const auto strategies = [](const std::string& line) {
    const auto found = trainer_options(line);
    return flag(found, "--save-strategy") + " " + flag(found, "--logging-strategy") + " " +
           flag(found, "--eval-strategy");
  };
  EXPECT_EQ(strategies(""), "no no no");
  EXPECT_EQ(strategies("--save-steps 20 --output-dir out"), "steps no no");
  EXPECT_EQ(strategies("--eval-steps 9 --logging-steps 3"), "no steps steps");
  EXPECT_EQ(strategies("--save-steps 20 --save-strategy epoch --output-dir out"), "epoch no no");
}

TEST(TrainerFlags, FlagsOfTransformersAreKnownByName) {
  const auto found = trainer_options(
      "--push_to_hub false --remove_unused_columns false --evaluation_strategy=epoch");
  EXPECT_EQ(found.training.eval_strategy, IntervalStrategy::kEpoch);
  EXPECT_EQ(found.notes, (Arguments{"evaluation_strategy: old name of eval_strategy",
                                    "remove_unused_columns: accepted, without effect: "
                                    "data_collator defines the contents of a batch"}));
  EXPECT_EQ(parse<TrainerRunOptions>("--help").text.find("--fsdp"), std::string::npos);
}

TEST(TrainerFlags, AreRefusedByTheirNames) {
  expect_refused<TrainerRunOptions>(
      {{"--bf16 --no-bf16", "bf16"},
       {"--fp16 --bf16", "fp16: bf16 is set too"},
       {"--epochs 3x", "--num-train-epochs: expected a number from 0 to 1000000000, got '3x'"},
       {"--report-to jsonl", "output_dir: expected a folder for report_to to write to"},
       {"--save-strategy epoch", "output_dir: expected a folder for the checkpoints"},
       {"--fsdp full_shard", "--fsdp: belongs to transformers and is not supported here"},
       {"--push_to_hub", "--push-to-hub: belongs to"},
       {"--fsd", "--fsd: no such option"},
       {"--learning-rat 1", "did you mean --learning-rate?"},
       {"--profile hf-defaults --sums exact",
        "sums: exact, and the batches of this accelerator_conf"},
       {"--scheduler 1", "--scheduler: no such"},
       {"--batch-mode 1", "--batch-mode: no such"},
       {"--scale-lr 1", "--scale-lr: no such"},
       {"--loader-mode 1", "--loader-mode: no such"}});
  expect_refused({{"--learning-rate 1", "--learning-rate: no such option"},
                  {"--args-file 1", "--args-file: no such option"},
                  {"--fsdp 1", "--fsdp: no such option"},
                  {"--no-do-eval 1", "--no-do-eval: no such option"}});
}

// --- main() ---

// The exit code of a program with these arguments.
template <typename Options>
int main_with(const std::string& line, const std::function<void(const Options&)>& run) {
  Arguments arguments = words(line);
  std::vector<char*> pointers;
  for (auto& argument : arguments) pointers.push_back(argument.data());
  return run_main<Options>(static_cast<int>(pointers.size()), pointers.data(), run);
}

TEST(RunMain, StartsTwoProcessesWhereThereIsNoGpuAndAsManyAsAskedFor) {
  int nprocs = 0;
  const auto look = [&](const SpawnedOptions& options) { nprocs = options.nprocs; };
  EXPECT_EQ(main_with<SpawnedOptions>("stage2_ddp_spawn --device=cpu", look), 0);
  EXPECT_EQ(nprocs, 2);
  EXPECT_EQ(main_with<SpawnedOptions>("stage2_ddp_spawn --device=cpu --nprocs=3", look), 0);
  EXPECT_EQ(nprocs, 3);
}

// A rank that nobody launched, whatever started this test.
class RunMainThatSpawnsOrJoins : public testing::Test {
 protected:
  void SetUp() override { forget(); }
  void TearDown() override { forget(); }

  static void launch(const char* rank) {
    setenv("RANK", rank, 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", "29500", 1);
  }

  // Whether stage 4 joins launched ranks.
  static bool joins(const std::string& line) {
    std::optional<bool> launched;
    EXPECT_EQ(
        main_with<AmpOptions>("stage4_ddp_amp " + line,
                              [&](const AmpOptions& options) { launched = options.launched; }),
        0);
    return launched.value();
  }

  static void expect_refused(const std::string& line, const std::string& message) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(main_with<AmpOptions>("stage4_ddp_amp " + line, [](const auto&) {}), 2);
    const std::string got = testing::internal::GetCapturedStderr();
    EXPECT_NE(got.find(message), std::string::npos) << got;
  }

 private:
  static void forget() {
    for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) unsetenv(name);
  }
};

TEST_F(RunMainThatSpawnsOrJoins, SpawnsWhenNobodyLaunchedItAndElseJoins) {
  EXPECT_FALSE(joins("--nprocs=2"));
  EXPECT_TRUE(joins("--rank=0 --world-size=1 --init-method=tcp://127.0.0.1:29500"));
  launch("0");
  EXPECT_TRUE(joins(""));
}

TEST_F(RunMainThatSpawnsOrJoins, RefusesWhatOnlyTheOtherWayTakes) {
  const std::string meeting = "--init-method=tcp://127.0.0.1:29500";
  expect_refused(meeting, "--init-method: no launcher has started the other ranks; hint: give");
  expect_refused("--rank=0 --world-size=1 --master-port=29501 " + meeting,
                 "--master-port: the ranks have been started by you, with --rank and --world-size");
  setenv("RANK", "0", 1);
  expect_refused("", "--no-python stage4_ddp_amp");  // the command that it proposes
  launch("0");
  expect_refused("--nprocs=2", "--nprocs: the ranks have been started by env; hint: omit");
}

TEST_F(RunMainThatSpawnsOrJoins, ANoteSaysThatALauncherStartedCopiesOfOneProcess) {
  const auto note_of = [](const std::string& line) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(main_with<SingleOptions>(line, [](const auto&) {}), 0);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(note_of("stage0_single_gpu"), "");
  launch("1");
  EXPECT_EQ(note_of("stage0_single_gpu").find("RANK=1, WORLD_SIZE=2: each of these processes"), 0U);
  EXPECT_EQ(note_of("stage0_single_gpu --quiet"), "");
}

class RunMainOfATrainer : public RunMainThatSpawnsOrJoins {
 protected:
  // What it wrote on the standard error.
  static std::string errors_of(const std::string& line, int* nprocs = nullptr) {
    testing::internal::CaptureStderr();
    main_with<TrainerRunOptions>("stage6_trainer " + line, [&](const TrainerRunOptions& options) {
      if (nprocs != nullptr) *nprocs = options.nprocs;
    });
    return testing::internal::GetCapturedStderr();
  }
};

TEST_F(RunMainOfATrainer, IsOneProcessUnlessTheConfigurationFileSaysMore) {
  const TemporaryFolder folder;
  const std::string file =
      " --config-file=" + folder.write("a.yaml", "distributed_type: MULTI_CPU\nnum_processes: 3\n");
  const std::map<std::string, int> expected = {{"--device=cpu", 1},
                                               {"--device=cpu" + file, 3},
                                               {"--num-processes=2 --device=cpu" + file, 2}};
  for (const auto& [line, processes] : expected) {
    int nprocs = 0;
    errors_of(line, &nprocs);
    EXPECT_EQ(nprocs, processes) << line;
  }
}

TEST_F(RunMainOfATrainer, TheMainProcessAlonePrintsTheNotes) {
  const std::string note = "evaluation_strategy: old name of eval_strategy\n";
  EXPECT_EQ(errors_of("--evaluation-strategy=epoch"), note);
  EXPECT_EQ(errors_of("--evaluation-strategy=epoch --quiet"), "");
  launch("1");
  EXPECT_EQ(errors_of("--evaluation-strategy=epoch"), "");
  launch("0");
  EXPECT_EQ(errors_of("--evaluation-strategy=epoch"), note);
}

TEST(RunMain, TurnsErrorsIntoExitCodes) {
  const auto throws = [](const auto& error) {
    return main_with<SingleOptions>("stage0_single_gpu",
                                    [&](const SingleOptions&) { throw error; });
  };
  EXPECT_EQ(main_with<SingleOptions>("stage0_single_gpu", [](const SingleOptions&) {}), 0);
  EXPECT_EQ(throws(std::runtime_error("x")), 1);
  EXPECT_EQ(throws(std::bad_alloc()), 1);
  EXPECT_EQ(throws(UsageError::conflict("a", "b", "c")), 2);
  EXPECT_EQ(throws(DataError::missing_file("a", "b")), 3);
  EXPECT_EQ(throws(DistributedError::of("a", "b", "c", "d")), 4);
  EXPECT_EQ(throws(NumericError::of("a", "b", "c", "d")), 5);
}

}  // namespace
}  // namespace mnist
