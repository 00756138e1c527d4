// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "bench/suite/cases.h"
#include "bench/suite/child.h"
#include "bench/suite/phases.h"
#include "bench/suite/turns.h"
#include "bench/suite/user_lines.h"
#include "ladder/core/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace ladder::bench {
namespace {

namespace fs = std::filesystem;

const Places kPlaces = {.bin = "bin", .peers = "peers", .venv = "venv"};

std::string words_of(const Case& row) {
  return fmt::format("{}", fmt::join(command_of(row, kPlaces, "runs").arguments, " "));
}

std::vector<Case> of_kind(const std::vector<Case>& rows, Kind kind) {
  std::vector<Case> found;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(found),
               [&](const Case& row) { return row.kind == kind; });
  return found;
}

TEST(Cases, NamesSayWhatRuns) {
  const Case row = {.recipe = "convnet",
                    .program = "stage4_ddp_amp",
                    .world = 2,
                    .precision = "bf16",
                    .threads = 3};
  EXPECT_EQ(name_of(row), "slice/convnet/stage4_ddp_amp/world:2/precision:bf16/threads:3");
  Case wide = row;
  wide.width = 4;
  wide.epochs = 2;
  EXPECT_EQ(name_of(wide), name_of(row) + "/width:4/epochs:2");
  Case exact = row;
  exact.micro_batch = 16;
  exact.seed = 3;
  EXPECT_EQ(name_of(exact), name_of(row) + "/micro_batch:16/seed:3");
  Case other = row;
  other.variant = "dispatch";
  EXPECT_EQ(name_of(other), name_of(row) + "/variant:dispatch");
}

TEST(Cases, StagesAreStartedAsTheyAreMeant) {
  const auto start = [](const char* program, int world, const char* precision = "fp32") {
    const auto words = words_of(
        {.recipe = "basicnet", .program = program, .world = world, .precision = precision});
    return words.substr(0, words.find(" --recipe"));
  };
  EXPECT_EQ(start("stage0_single_gpu", 1), "bin/stage0_single_gpu");
  EXPECT_EQ(start("stage1_data_parallel", 2), "bin/stage1_data_parallel --device-ids cpu,cpu");
  EXPECT_EQ(start("stage2_ddp_spawn", 2), "bin/stage2_ddp_spawn --nprocs 2");
  EXPECT_EQ(start("stage3_ddp_torchrun", 2),
            "venv/bin/torchrun --standalone --nproc-per-node 2 --no-python "
            "bin/stage3_ddp_torchrun");
  EXPECT_EQ(start("stage4_ddp_amp", 2, "bf16"), "bin/stage4_ddp_amp --nprocs 2 --precision bf16");
  EXPECT_EQ(start("stage5_accelerator", 1, "bf16"),
            "bin/stage5_accelerator --nprocs 1 --mixed-precision bf16");
  EXPECT_EQ(start("stage6_trainer", 1, "bf16"), "bin/stage6_trainer --nprocs 1 --bf16");
  EXPECT_EQ(start("python_single", 1), "venv/bin/python3 peers/single.py");
  EXPECT_EQ(start("python_data_parallel", 2),
            "venv/bin/python3 peers/data_parallel.py --device cpu");
  EXPECT_EQ(start("python_ddp_torchrun", 2),
            "venv/bin/torchrun --standalone --nproc-per-node 2 peers/ddp.py");
  EXPECT_EQ(start("python_trainer", 2, "bf16"),
            "venv/bin/python3 peers/trainer.py --nprocs 2 --precision bf16");
  EXPECT_EQ(start("python_tuned", 1), "venv/bin/python3 peers/tuned.py --precision fp32");
  EXPECT_EQ(start("python_tuned_compile", 1, "bf16"),
            "venv/bin/python3 peers/tuned.py --precision bf16 --compile");
  EXPECT_EQ(start("python_jax", 1), "venv/bin/python3 peers/jax_jit.py");
  EXPECT_EQ(start("python_fabric", 2), "venv/bin/python3 peers/fabric.py --nprocs 2");
  EXPECT_EQ(start("python_lightning", 1), "venv/bin/python3 peers/lightning_trainer.py --nprocs 1");
  EXPECT_EQ(start("libtorch_usual", 1), "bin/libtorch_usual");
  EXPECT_EQ(start("pipeline", 2), "bin/pipeline --nprocs 2");
  EXPECT_EQ(start("python_zero_redundancy", 2),
            "venv/bin/python3 peers/zero_redundancy.py --nprocs 2");
  EXPECT_ERROR(start("stage7", 1), UsageError,
               "stage6_trainer, zero_redundancy, pipeline, got 'stage7'");
}

TEST(Cases, TheOneProcessOfDataParallelHasTheThreadsOfAllReplicas) {
  for (const auto& [program, threads] :
       {std::pair{"python_data_parallel", 6}, std::pair{"stage1_data_parallel", 6},
        std::pair{"python_ddp_spawn", 3}}) {
    const auto words =
        words_of({.recipe = "basicnet", .program = program, .world = 2, .threads = 3});
    EXPECT_NE(words.find(fmt::format("--threads {} ", threads)), std::string::npos) << words;
  }
}

TEST(Cases, KindsDifferInLength) {
  const auto rest = [](Kind kind, const char* recipe) {
    const auto words = words_of({.kind = kind, .recipe = recipe, .program = "stage0_single_gpu"});
    return words.substr(words.find("child.jsonl") + 12);
  };
  EXPECT_EQ(rest(Kind::kSlice, "basicnet"),
            "--epochs 1 --limit-train 14080 --limit-test 64 --quiet");
  EXPECT_EQ(rest(Kind::kCheck, "convnet"),
            "--epochs 1 --limit-train 640 --limit-test 200 --device cpu --quiet");
  EXPECT_EQ(rest(Kind::kFull, "convnet"), "--quiet");
  EXPECT_EQ(rest(Kind::kPhases, "convnet"),
            "--epochs 1 --limit-train 320 --limit-test 32 --trace runs/child.trace.json --quiet");
}

TEST(Cases, ChecksAreOnTheCpuAndWithoutSharedStatistics) {
  const auto of = [](const char* program, int world) {
    return words_of(
        {.kind = Kind::kCheck, .recipe = "convnet", .program = program, .world = world});
  };
  EXPECT_NE(of("stage4_ddp_amp", 2).find("--precision fp32 "), std::string::npos);
  EXPECT_NE(of("stage4_ddp_amp", 2).find("--device cpu --no-sync-bn"), std::string::npos);
  EXPECT_NE(of("stage1_data_parallel", 2).find("--device-ids cpu,cpu"), std::string::npos);
  EXPECT_EQ(of("stage1_data_parallel", 2).find("--device cpu"), std::string::npos);
}

TEST(Cases, RecipesOfTheClaimsAreFlags) {
  const auto recipe = [](const char* name, const char* program = "python_single") {
    const auto words = words_of({.kind = Kind::kFull, .recipe = name, .program = program});
    const auto begin = words.find("--recipe");
    return words.substr(begin, words.find(" --threads") - begin);
  };
  EXPECT_EQ(recipe("basicnet"), "--recipe basicnet");
  EXPECT_EQ(recipe("basicnet-hf-defaults"), "--recipe basicnet --profile hf-defaults");
  EXPECT_EQ(recipe("basicnet-hf-defaults", "stage6_trainer"),
            "--recipe basicnet --profile hf-defaults --save-strategy no --output-dir runs/trainer");
  EXPECT_EQ(recipe("convnet-ddp-practice"), "--recipe convnet --batch-mode per-device");
  EXPECT_EQ(recipe("convnet-ddp-practice", "stage4_ddp_amp"),
            "--recipe convnet --profile ddp-practice");
}

// 2 x (multiply-adds of the layers), three times, but for the gradient of the images: 71,565,312
// and 13.83 million in the counts that the marks are made with.
TEST(Cases, CountTheWorkOfASample) {
  EXPECT_EQ(training_flops("basicnet"), 71565312.0);
  EXPECT_NEAR(training_flops("convnet"), 13.83e6, 0.005e6);
  const double conv1 = 2.0 * 389376;
  const double conv2 = 3.0 * 21233664;
  const double fc1 = 3.0 * 2359296;
  const double fc2 = 3.0 * 2560;
  EXPECT_EQ(training_flops("basicnet", 2), 2 * conv1 + 4 * conv2 + 4 * fc1 + 2 * fc2);
}

TEST(Cases, TheShortTierHasTheSevenStagesAndTheirChecks) {
  const auto rows = cases_of("short", 2);
  EXPECT_EQ(name_of(rows.front()),
            "full/basicnet/stage0_single_gpu/world:1/precision:fp32/threads:2");
  const auto full = of_kind(rows, Kind::kFull);
  ASSERT_EQ(full.size(), 7U);
  for (const auto& row : full) {
    EXPECT_EQ(row.world * row.threads, 2) << name_of(row);
    EXPECT_EQ(row.world, row.program == "stage0_single_gpu" ? 1 : 2) << name_of(row);
  }
  for (const auto& row : full) {
    const auto is_check = [&](const Case& other) {
      return other.kind == Kind::kCheck && other.program == row.program && other.world == row.world;
    };
    EXPECT_EQ(std::count_if(rows.begin(), rows.end(), is_check), 1) << name_of(row);
  }
  EXPECT_EQ(of_kind(rows, Kind::kCheck).size(), 8U) << "and stage 2 alone";
  const auto brief = of_kind(rows, Kind::kBrief);
  EXPECT_EQ(std::ranges::count_if(brief, is_twin), 8) << "of each stage, and tuned";
  EXPECT_EQ(brief.size(), 12U) << "and stage 2 on one process and on two, for both recipes";
  EXPECT_EQ(words_of(brief.front()).substr(0, 38), "venv/bin/python3 peers/single.py --rec");
}

std::set<std::string> names_of(const std::vector<Case>& rows) {
  std::set<std::string> names;
  for (const auto& row : rows) names.insert(name_of(row));
  EXPECT_EQ(names.size(), rows.size()) << "no name twice";
  return names;
}

TEST(Cases, EveryStageHasATwinThatIsStartedAlike) {
  for (const char* tier : {"bench", "whole"}) {
    const auto rows = cases_of(tier, 2);
    const auto names = names_of(rows);
    for (auto row : rows) {
      const bool is_alone = row.width != 1 || !row.variant.empty() || row.micro_batch > 0 ||
                            (row.program == "stage2_ddp_spawn" && row.world == 1);
      if (row.kind != Kind::kSlice && row.kind != Kind::kFull) continue;
      if (is_alone || is_twin(row) || row.program == "libtorch_usual") continue;
      const std::map<std::string, std::string> twins = {
          {"stage0_single_gpu", "python_single"},
          {"stage1_data_parallel", "python_data_parallel"},
          {"stage2_ddp_spawn", "python_ddp_spawn"},
          {"stage3_ddp_torchrun", "python_ddp_torchrun"},
          {"stage4_ddp_amp", "python_ddp_amp"},
          {"stage5_accelerator", "python_accelerate"},
          {"stage6_trainer", "python_trainer"},
          {"zero_redundancy", "python_zero_redundancy"},
          {"pipeline", "python_pipeline"}};
      row.program = twins.at(row.program);
      EXPECT_TRUE(names.contains(name_of(row))) << name_of(row);
    }
  }
}

TEST(Cases, TheBenchTierHasEveryDistributedStageInBothWorldsAndPrecisions) {
  const auto names = names_of(cases_of("bench", 2));
  for (const char* stage : {"stage2_ddp_spawn", "stage3_ddp_torchrun", "stage4_ddp_amp",
                            "stage5_accelerator", "stage6_trainer"}) {
    for (const int world : {1, 2}) {
      const auto row = [&](const char* precision) {
        return fmt::format("slice/basicnet/{}/world:{}/precision:{}/threads:{}", stage, world,
                           precision, 2 / world);
      };
      EXPECT_TRUE(names.contains(row("fp32"))) << row("fp32");
      const bool has_amp = std::string(stage) > "stage4";
      EXPECT_EQ(names.contains(row("bf16")), has_amp) << row("bf16");
    }
  }
  EXPECT_TRUE(names.contains("slice/basicnet/libtorch_usual/world:1/precision:fp32/threads:2"));
  EXPECT_TRUE(names.contains("slice/convnet/stage2_ddp_spawn/world:1/precision:fp32/threads:1"));
  for (const char* program : {"zero_redundancy", "pipeline"}) {
    EXPECT_TRUE(
        names.contains(fmt::format("slice/basicnet/{}/world:2/precision:fp32/threads:1", program)));
  }
}

TEST(Cases, TheWholeTierHasThreeSeedsOfEachStage) {
  const auto names = names_of(cases_of("whole", 2));
  for (const int seed : {1, 2, 3}) {
    for (const char* recipe : {"basicnet", "convnet"}) {
      for (const char* program : {"stage1_data_parallel", "stage2_ddp_spawn", "stage6_trainer",
                                  "python_ddp_torchrun", "python_trainer"}) {
        const auto name = fmt::format("full/{}/{}/world:2/precision:fp32/threads:1/seed:{}", recipe,
                                      program, seed);
        EXPECT_TRUE(names.contains(name)) << name;
      }
    }
  }
  EXPECT_EQ(of_kind(cases_of("bench", 2), Kind::kFull).size(), 0U);
}

TEST(Cases, VariantsOfStage5TrainOnTheSameSamplesPerStep) {
  const auto rest = [](const char* variant) {
    const auto words = words_of(
        {.recipe = "basicnet", .program = "stage5_accelerator", .world = 2, .variant = variant});
    const std::string recipe = "--recipe basicnet";
    const auto begin = words.find(recipe) + recipe.size();
    return words.substr(begin, words.find(" --threads") - begin);
  };
  EXPECT_EQ(rest(""), "");
  EXPECT_EQ(rest("dispatch"), " --dispatch-batches");
  EXPECT_EQ(rest("accumulate"), " --gradient-accumulation-steps 4 --batch-size 16");
  EXPECT_EQ(rest("accumulate_sync"),
            " --gradient-accumulation-steps 4 --batch-size 16 --sync-each-batch");
}

TEST(UserLines, AreThoseOfCode) {
  const TemporaryFolder folder;
  folder.write("main.cpp",
               "// Says what it does.\n#include <a>\n\nint main() {\n  // nothing\n}\n");
  EXPECT_EQ(user_lines(folder.file("main.cpp")), 2.0);
  folder.write("twin.py", R"(#!/usr/bin/env python3
"""Says what it does.

    python twin.py
"""
import a
from b import (
    c,
    d,
)

def main():
    """In one line."""
    # nothing
    a.run()
)");
  EXPECT_EQ(user_lines(folder.file("twin.py")), 2.0);
  EXPECT_EQ(user_lines(folder.file("none")), std::nullopt);
  for (const char* program : {"stage0_single_gpu", "pipeline", "python_trainer",
                              "python_zero_redundancy", "python_pipeline", "python_tuned_compile",
                              "python_jax", "python_lightning", "libtorch_usual"}) {
    EXPECT_GT(user_lines(fs::path(LADDER_SOURCE_DIR) / source_of(program)), 30.0) << program;
  }
}

TEST(Cases, OtherLibrariesStandBesideTheirStages) {
  const auto names = names_of(cases_of("bench", 2));
  for (const auto& [program, stage] : {std::pair{"python_jax", "stage0_single_gpu"},
                                       std::pair{"python_fabric", "stage5_accelerator"},
                                       std::pair{"python_lightning", "stage6_trainer"}}) {
    for (const char* recipe : {"basicnet", "convnet"}) {
      for (const int world : {1, 2}) {
        const auto row = [&](const char* name) {
          return fmt::format("slice/{}/{}/world:{}/precision:fp32/threads:{}", recipe, name, world,
                             2 / world);
        };
        EXPECT_EQ(names.contains(row(program)), names.contains(row(stage))) << row(program);
      }
    }
  }
}

TEST(Cases, TheQuickTierHasStagesTwinsAndTunedPythonOnBothNetworks) {
  const auto rows = cases_of("quick", 2);
  const auto names = names_of(rows);
  for (const auto& row : of_kind(cases_of("short", 2), Kind::kFull)) {
    for (const char* recipe : {"basicnet", "convnet"}) {
      auto slice = row;
      slice.kind = Kind::kSlice;
      slice.recipe = recipe;
      EXPECT_TRUE(names.contains(name_of(slice))) << name_of(slice);
    }
  }
  for (const char* name : {"basicnet/stage6_trainer/world:1/precision:fp32/threads:2",
                           "basicnet/python_trainer/world:1/precision:fp32/threads:2",
                           "basicnet/python_ddp_amp/world:2/precision:bf16/threads:1",
                           "convnet/python_tuned/world:1/precision:fp32/threads:2"}) {
    EXPECT_TRUE(names.contains(fmt::format("slice/{}", name))) << name;
  }
  EXPECT_EQ(of_kind(rows, Kind::kSlice).size(), 25U + 15U);
  EXPECT_EQ(rows.size(), 40U + 16U) << "and the checks";
  for (const auto& row : of_kind(rows, Kind::kSlice)) {
    EXPECT_NE(
        words_of(row).find(row.recipe == "convnet" ? "--limit-train 1600" : "--limit-train 3200"),
        std::string::npos)
        << words_of(row);
  }
}

// Each target on speed is a ratio of two of these.
TEST(Cases, TheLongTierHasTheRowsOfTheTargets) {
  const auto names = names_of(cases_of("bench", 2));
  for (const char* name : {"basicnet/stage0_single_gpu/world:1/precision:fp32/threads:2",
                           "basicnet/python_tuned/world:1/precision:fp32/threads:2",
                           "basicnet/python_tuned_compile/world:1/precision:fp32/threads:2",
                           "basicnet/stage4_ddp_amp/world:1/precision:bf16/threads:2",
                           "basicnet/python_tuned/world:1/precision:bf16/threads:2",
                           "basicnet/python_tuned_compile/world:1/precision:bf16/threads:2",
                           "convnet/stage0_single_gpu/world:1/precision:fp32/threads:2",
                           "convnet/python_tuned/world:1/precision:fp32/threads:2",
                           "convnet/python_tuned_compile/world:1/precision:fp32/threads:2",
                           "basicnet/stage2_ddp_spawn/world:2/precision:fp32/threads:1",
                           "basicnet/stage2_ddp_spawn/world:1/precision:fp32/threads:1",
                           "basicnet/stage2_ddp_spawn/world:1/precision:fp32/threads:2"}) {
    EXPECT_TRUE(names.contains(fmt::format("slice/{}", name))) << name;
  }
  EXPECT_FALSE(names.contains("slice/convnet/python_tuned/world:1/precision:bf16/threads:2"));
}

TEST(Cases, ExactSumsStandBesideSumsInFloat) {
  const auto rows = cases_of("whole", 2);
  const auto sums = of_kind(rows, Kind::kSums);
  ASSERT_EQ(sums.size(), 8U) << "two worlds, each in float and with three micro-batches";
  for (const auto& row : sums) EXPECT_EQ(row.threads, 1) << name_of(row);
  EXPECT_EQ(name_of(sums.front()),
            "sums/basicnet/stage2_ddp_spawn/world:1/precision:fp32/threads:1");
  EXPECT_EQ(words_of(sums.back()),
            "bin/stage2_ddp_spawn --nprocs 2 --recipe basicnet --sums exact --micro-batch 32 "
            "--threads 1 --metrics runs/child.jsonl --epochs 1 --limit-train 14080 "
            "--limit-test 64 --quiet");
  const auto seeds = of_kind(rows, Kind::kSeeds);
  ASSERT_EQ(seeds.size(), 10U) << "five seeds, in float and exact";
  EXPECT_EQ(words_of(seeds.back()),
            "bin/stage2_ddp_spawn --nprocs 2 --recipe basicnet --sums exact --micro-batch 16 "
            "--seed 5 --threads 1 --metrics runs/child.jsonl --quiet");
  EXPECT_EQ(words_of(seeds.front()).find("--sums"), std::string::npos);
}

TEST(Cases, MoreCpusAreDivided) {
  const auto names = names_of(cases_of("bench", 8));
  EXPECT_TRUE(names.contains("slice/basicnet/stage0_single_gpu/world:1/precision:fp32/threads:8"));
  EXPECT_TRUE(names.contains("slice/basicnet/stage2_ddp_spawn/world:2/precision:fp32/threads:4"));
  EXPECT_TRUE(names.contains("slice/basicnet/stage2_ddp_spawn/world:8/precision:fp32/threads:1"));
  EXPECT_ERROR(cases_of("long", 2), UsageError,
               "--tier: expected one of short, quick, bench, whole, got 'long'");
}

ChildEnd run(const std::string& script, const TemporaryFolder& folder, int seconds = 20) {
  return run_child({.arguments = {"/bin/sh", "-c", script}, .environment = {{"WORD", "said"}}},
                   folder.path(), std::chrono::seconds(seconds));
}

TEST(Child, ItsEndIsToldInWords) {
  const TemporaryFolder folder;
  EXPECT_EQ(run("exit 0", folder).failure, "");
  EXPECT_EQ(run("echo one >&2; echo $WORD >&2; exit 3", folder).failure,
            "exit code 3; last line: said");
  EXPECT_EQ(run("kill -SEGV $$", folder).failure, "ended by Segmentation fault; no output");
}

TEST(Child, ExitCode77MeansThatTheMachineLacksSomething) {
  const TemporaryFolder folder;
  EXPECT_FALSE(run("echo error: no compiler >&2; exit 77", folder).available);
  for (const char* other : {"exit 0", "exit 3", "kill -SEGV $$"}) {
    EXPECT_TRUE(run(other, folder).available) << other;
  }
}

TEST(Child, AnErrorIsToldRatherThanWhatComesAfterIt) {
  const TemporaryFolder folder;
  EXPECT_EQ(run("echo error: no data >&2; echo ==== >&2; exit 3", folder).failure,
            "exit code 3; last line: error: no data");
}

// Whether a process is gone, or becomes so soon: what was killed takes a moment to end.
bool is_gone(const std::string& pid) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  do {
    std::ifstream file("/proc/" + pid + "/stat");
    std::string number;
    std::string name;
    std::string state = "gone";
    file >> number >> name >> state;
    if (state == "gone" || state == "Z") return true;
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

TEST(Child, EndsAtItsDeadlineWithAllThatItStarted) {
  const TemporaryFolder folder;
  const auto end = run("sleep 60 & echo $! >&2; wait", folder, 1);
  const std::string kBegin = "timed out after 1 s; last line: ";
  ASSERT_EQ(end.failure.substr(0, kBegin.size()), kBegin);
  EXPECT_TRUE(is_gone(end.failure.substr(kBegin.size())));
  EXPECT_LT(end.seconds, 20.0);
}

// The suite gets SIGTERM while it waits: the child goes too, and the suite dies of the signal.
TEST(Child, GoesWithItsParent) {
  const TemporaryFolder folder;
  const pid_t suite = fork();
  if (suite == 0) {
    run("echo $$ > " + folder.file("pid") + "; exec sleep 60", folder, 60);
    _exit(0);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  std::string pid;
  while (pid.empty() && std::chrono::steady_clock::now() < deadline) {
    std::ifstream(folder.file("pid")) >> pid;
  }
  ASSERT_FALSE(pid.empty());
  kill(suite, SIGTERM);
  int status = 0;
  ASSERT_EQ(waitpid(suite, &status, 0), suite);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
  EXPECT_TRUE(is_gone(pid));
}

TEST(Child, OneThatIsNotThereIsNamed) {
  const TemporaryFolder folder;
  const Command command = {.arguments = {"/none/stage"}, .environment = {}};
  EXPECT_EQ(run_child(command, folder.path(), std::chrono::seconds(5)).failure,
            "/none/stage: No such file or directory");
}

// What is written for six whole runs, of which the first takes half of the usual time, and a check.
std::string text_of_turns(bool terminal) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* stream = ::open_memstream(&text, &size);
  const Case whole = {.kind = Kind::kFull, .recipe = "basicnet", .program = "stage0_single_gpu"};
  const Case check = {.kind = Kind::kCheck, .recipe = "basicnet", .program = "stage6_trainer"};
  double now = 100.0;
  Turns turns(stream, terminal, [&] { return now; });
  turns.announce(whole, 6);
  turns.announce(check, 1);
  for (int i = 0; i < 7; ++i) {
    const auto& row = i < 6 ? whole : check;
    turns.begin(row);
    now += i < 6 ? 9.0 : 1.5;
    turns.end(row, "result");
  }
  std::fclose(stream);
  std::string written(text, size);
  std::free(text);
  return written;
}

TEST(Turns, EachRowAddsALineWithTheRemainingTimeAtTheMeasuredSpeed) {
  const auto text = text_of_turns(false);
  EXPECT_EQ(text.substr(0, text.find('\n')),
            "[1/7] stage0_single_gpu     basicnet  1 x 1  fp32  result  about 70 s left");
  const std::string kLast = "[7/7] stage6_trainer        basicnet  1 x 1  fp32  result\n";
  EXPECT_EQ(text.substr(text.size() - kLast.size()), kLast);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 7);
}

TEST(Turns, OnATerminalTheRowUnderWayIsRedrawn) {
  const auto text = text_of_turns(true);
  const std::string kHeading = "[1/7] stage0_single_gpu     basicnet  1 x 1  fp32  ";
  const auto kFirst = kHeading + "training  about 2 min left\x1b[K\r" + kHeading + "result\x1b[K\n";
  EXPECT_EQ(text.substr(0, kFirst.size()), kFirst);
}

std::string box(const std::string& name, int begin, int duration) {
  return fmt::format(R"({{"ph": "X", "name": "{}", "ts": {}, "dur": {}}})", name, begin, duration);
}

// A step that begins at `at` and ends 100 us later.
std::string step(int at) {
  const std::string backward = "autograd::engine::evaluate_function: ";
  return fmt::format("{}, {}, {}, {}, {}, {}", box("aten::_fused_sgd_", at + 94, 6),
                     box("aten::conv2d", at + 10, 5), box("aten::conv2d", at + 20, 5),
                     box(backward + "NllLossBackward0", at + 40, 4),
                     box(backward + "ConvolutionBackward0", at + 50, 25),
                     box("gloo:all_reduce", at + 60, 30));
}

std::string trace_of(const TemporaryFolder& folder, const std::string& events) {
  auto path = folder.file("trace.json");
  std::ofstream(path) << R"({"traceEvents": [)" << events << "]}";
  return path;
}

// Of three steps, each of whose boxes `boxes` makes from its beginning.
Phases phases_of(const std::function<std::string(int at)>& boxes) {
  const TemporaryFolder folder;
  return read_phases(
      trace_of(folder, fmt::format("{}, {}, {}", boxes(1000), boxes(1100), boxes(1200))));
}

TEST(Phases, AreTheTimesBetweenTheBoxes) {
  const auto phases = phases_of(step);
  EXPECT_DOUBLE_EQ(phases.data, 0.010);
  EXPECT_DOUBLE_EQ(phases.forward, 0.030);
  EXPECT_DOUBLE_EQ(phases.backward, 0.035);
  EXPECT_DOUBLE_EQ(phases.communication, 0.019);
  EXPECT_DOUBLE_EQ(phases.optimizer, 0.006);
}

TEST(Phases, CollectivesThatHoldUpForwardAndBackwardAreCommunication) {
  const auto phases = phases_of([](int at) {
    return fmt::format("{}, {}, {}", step(at), box("c10d::allgather_", at + 30, 4),
                       box("c10d::allreduce_", at + 55, 10));
  });
  EXPECT_DOUBLE_EQ(phases.forward, 0.026);
  EXPECT_DOUBLE_EQ(phases.backward, 0.025);
  EXPECT_DOUBLE_EQ(phases.communication, 0.033);
}

TEST(Phases, CollectivesBehindBackwardAreNotCountedTwice) {
  const auto phases = phases_of(
      [](int at) { return fmt::format("{}, {}", step(at), box("c10d::allreduce_", at + 80, 10)); });
  EXPECT_DOUBLE_EQ(phases.backward, 0.035);
  EXPECT_DOUBLE_EQ(phases.communication, 0.019);
}

TEST(Phases, NeedTwoSteps) {
  const TemporaryFolder folder;
  EXPECT_ERROR(read_phases(trace_of(folder, step(1000))), DataError,
               "expected a trace of two training steps or more, got 5 boxes of steps");
  EXPECT_ERROR(read_phases(folder.file("none.json")), DataError, "got 0 boxes of steps");
}

}  // namespace
}  // namespace ladder::bench
