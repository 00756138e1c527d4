// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bench/suite/cases.h"
#include "bench/suite/child.h"
#include "bench/suite/phases.h"
#include "bench/suite/turns.h"
#include "bench/suite/user_lines.h"
#include "ladder/core/error.h"
#include "tests/support/captured_stream.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace ladder::bench {
namespace {

namespace fs = std::filesystem;

const Places kPlaces = {.bin = "bin", .peers = "peers", .venv = "venv"};

// A row on two CPUs.
Case row_of(const char* recipe, const char* program, int world = 1,
            const char* precision = "fp32") {
  return {.recipe = recipe,
          .program = program,
          .world = world,
          .precision = precision,
          .threads = 2 / world};
}

std::string words_of(const Case& row) {
  return fmt::format("{}", fmt::join(command_of(row, kPlaces, "runs").arguments, " "));
}

// Expects these words in the command, one after the other.
void expect_words(const Case& row, const std::string& words) {
  const auto command = fmt::format(" {} ", words_of(row));
  EXPECT_NE(command.find(fmt::format(" {} ", words)), std::string::npos)
      << "expected: " << words << "\nthe command is: " << command;
}

std::vector<Case> of_kind(const std::vector<Case>& rows, Kind kind) {
  std::vector<Case> found;
  std::ranges::copy_if(rows, std::back_inserter(found),
                       [&](const Case& row) { return row.kind == kind; });
  return found;
}

std::set<std::string> names_of(const std::vector<Case>& rows) {
  std::set<std::string> names;
  for (const auto& row : rows) names.insert(name_of(row));
  EXPECT_EQ(names.size(), rows.size()) << "no name twice";
  return names;
}

void expect_rows(const std::set<std::string>& names, const std::vector<Case>& rows) {
  for (const auto& row : rows) EXPECT_TRUE(names.contains(name_of(row))) << name_of(row);
}

TEST(Cases, NamesSayWhatRuns) {
  auto row = row_of("convnet", "stage4_ddp_amp", 2, "bf16");
  std::string name = "slice/convnet/stage4_ddp_amp/world:2/precision:bf16/threads:1";
  EXPECT_EQ(name_of(row), name);
  row.width = 4;
  EXPECT_EQ(name_of(row), name += "/width:4");
  row.micro_batch = 16;
  EXPECT_EQ(name_of(row), name += "/micro_batch:16");
  row.epochs = 2;
  EXPECT_EQ(name_of(row), name += "/epochs:2");
  row.seed = 3;
  EXPECT_EQ(name_of(row), name += "/seed:3");
  row.variant = "dispatch";
  EXPECT_EQ(name_of(row), name + "/variant:dispatch");
}

TEST(Cases, ProgramsAreStartedAsTheyAreMeant) {
  const std::string torchrun = "venv/bin/torchrun --standalone --nproc-per-node 2 ";
  const std::string peer = "venv/bin/python3 peers/";
  for (const auto& [program, world, precision, words] :
       std::initializer_list<std::tuple<const char*, int, const char*, std::string>>{
           {"stage0_single_gpu", 1, "fp32", "bin/stage0_single_gpu"},
           {"stage1_data_parallel", 2, "fp32", "bin/stage1_data_parallel --device-ids cpu,cpu"},
           {"stage2_ddp_spawn", 2, "fp32", "bin/stage2_ddp_spawn --nprocs 2"},
           {"stage3_ddp_torchrun", 2, "fp32", torchrun + "--no-python bin/stage3_ddp_torchrun"},
           {"stage4_ddp_amp", 2, "bf16", "bin/stage4_ddp_amp --nprocs 2 --precision bf16"},
           {"stage5_accelerator", 1, "bf16",
            "bin/stage5_accelerator --nprocs 1 --mixed-precision bf16"},
           {"stage6_trainer", 1, "bf16", "bin/stage6_trainer --nprocs 1 --bf16"},
           {"python_single", 1, "fp32", peer + "single.py"},
           {"python_data_parallel", 2, "fp32", peer + "data_parallel.py --device cpu"},
           {"python_ddp_torchrun", 2, "fp32", torchrun + "peers/ddp.py"},
           {"python_trainer", 2, "bf16", peer + "trainer.py --nprocs 2 --precision bf16"},
           {"python_tuned", 1, "fp32", peer + "tuned.py --precision fp32"},
           {"python_tuned_compile", 1, "bf16", peer + "tuned.py --precision bf16 --compile"},
           {"python_jax", 1, "fp32", peer + "jax_jit.py"},
           {"python_fabric", 2, "fp32", peer + "fabric.py --nprocs 2"},
           {"python_lightning", 1, "fp32", peer + "lightning_trainer.py --nprocs 1"},
           {"libtorch_usual", 1, "fp32", "bin/libtorch_usual"},
           {"pipeline", 2, "fp32", "bin/pipeline --nprocs 2"},
           {"python_zero_redundancy", 2, "fp32", peer + "zero_redundancy.py --nprocs 2"},
           {"fully_sharded", 2, "fp32", "bin/fully_sharded --nprocs 2"},
           {"python_fully_sharded", 2, "fp32", peer + "fully_sharded.py --nprocs 2"},
           {"cuda_graph", 1, "fp32", "bin/cuda_graph"},
           {"python_cuda_graph", 1, "fp32", peer + "cuda_graph.py"},
           {"python_tuned_graph", 1, "fp32", peer + "tuned.py --precision fp32 --cuda-graph"},
           {"python_tuned_compile_graph", 1, "bf16",
            peer + "tuned.py --precision bf16 --compile --cuda-graph"}}) {
    const auto command = words_of(row_of("basicnet", program, world, precision));
    EXPECT_EQ(command.substr(0, command.find(" --recipe")), words);
  }
  EXPECT_ERROR(words_of(row_of("basicnet", "stage7")), UsageError, "cuda_graph, got 'stage7'");
}

Case with_kind(Kind kind, Case row) {
  row.kind = kind;
  return row;
}

Case with_variant(const char* variant) {
  auto row = row_of("basicnet", "stage5_accelerator", 2);
  row.variant = variant;
  return row;
}

TEST(Cases, FlagsAreThoseOfTheRow) {
  const auto stage0 = row_of("convnet", "stage0_single_gpu");
  const auto peer = [](const char* recipe) { return row_of(recipe, "python_single"); };
  for (const auto& [row, words] : std::initializer_list<std::pair<Case, const char*>>{
           // One process has the threads of all replicas.
           {row_of("basicnet", "python_data_parallel", 2), "--threads 2"},
           {row_of("basicnet", "stage1_data_parallel", 2), "--threads 2"},
           {row_of("basicnet", "python_ddp_spawn", 2), "--threads 1"},
           // Kinds differ in length.
           {row_of("basicnet", "stage0_single_gpu"),
            "runs/child.jsonl --epochs 1 --limit-train 14080 --limit-test 64 --quiet"},
           {with_kind(Kind::kCheck, stage0),
            "runs/child.jsonl --epochs 1 --limit-train 640 --limit-test 200 --device cpu --quiet"},
           {with_kind(Kind::kFull, stage0), "runs/child.jsonl"},
           {with_kind(Kind::kPhases, stage0),
            "runs/child.jsonl --epochs 1 --limit-train 320 --limit-test 32 "
            "--trace runs/child.trace.json --quiet"},
           // Checks are on the CPU and without shared statistics.
           {with_kind(Kind::kCheck, row_of("convnet", "stage4_ddp_amp", 2)),
            "--device cpu --no-sync-bn --quiet"},
           {with_kind(Kind::kCheck, row_of("convnet", "stage1_data_parallel", 2)),
            "--limit-test 200 --quiet"},
           // Recipes of the source tutorials.
           {peer("basicnet"), "--recipe basicnet --threads"},
           {peer("basicnet-hf-defaults"), "--recipe basicnet --profile hf-defaults --threads"},
           {row_of("basicnet-hf-defaults", "stage6_trainer"),
            "--profile hf-defaults --save-strategy no --output-dir runs/trainer --threads"},
           {peer("convnet-ddp-practice"), "--recipe convnet --batch-mode per-device --threads"},
           {row_of("convnet-ddp-practice", "stage4_ddp_amp"),
            "--recipe convnet --profile ddp-practice --threads"},
           // Variants of stage 5 train on the same samples per step.
           {with_variant(""), "--recipe basicnet --threads"},
           {with_variant("dispatch"), "--recipe basicnet --dispatch-batches --threads"},
           {with_variant("accumulate"),
            "--recipe basicnet --gradient-accumulation-steps 4 --batch-size 16 --threads"},
           {with_variant("accumulate_sync"), "--batch-size 16 --sync-each-batch --threads"}}) {
    expect_words(row, words);
  }
}

// 2 x (multiply-adds of the layers), three times, but for the gradient of the images: 71,565,312
// and 13.83 million in the counts that the targets are made with.
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
    const auto is_check = [&](const Case& other) {
      return other.kind == Kind::kCheck && other.program == row.program && other.world == row.world;
    };
    EXPECT_EQ(std::ranges::count_if(rows, is_check), 1) << name_of(row);
  }
  EXPECT_EQ(of_kind(rows, Kind::kCheck).size(), 8U) << "and stage 2 alone";
  const auto brief = of_kind(rows, Kind::kBrief);
  EXPECT_EQ(std::ranges::count_if(brief, is_twin), 8) << "of each stage, and tuned";
  EXPECT_EQ(brief.size(), 12U) << "and stage 2 on one process and on two, for both recipes";
  expect_words(brief.front(), "venv/bin/python3 peers/single.py --recipe");
}

TEST(Cases, EveryStageHasATwinThatIsStartedAlike) {
  const std::map<std::string, std::string> twins = {
      {"stage0_single_gpu", "python_single"},   {"stage1_data_parallel", "python_data_parallel"},
      {"stage2_ddp_spawn", "python_ddp_spawn"}, {"stage3_ddp_torchrun", "python_ddp_torchrun"},
      {"stage4_ddp_amp", "python_ddp_amp"},     {"stage5_accelerator", "python_accelerate"},
      {"stage6_trainer", "python_trainer"},     {"zero_redundancy", "python_zero_redundancy"},
      {"pipeline", "python_pipeline"},          {"fully_sharded", "python_fully_sharded"},
      {"cuda_graph", "python_cuda_graph"}};
  for (const char* tier : {"bench", "whole"}) {
    const auto rows = cases_of(tier, 2);
    const auto names = names_of(rows);
    for (auto row : rows) {
      const bool is_alone = row.width != 1 || !row.variant.empty() || row.micro_batch > 0 ||
                            row.world * row.threads == 1;
      if (row.kind != Kind::kSlice && row.kind != Kind::kFull) continue;
      if (is_alone || is_twin(row) || row.program == "libtorch_usual") continue;
      row.program = twins.at(row.program);
      expect_rows(names, {row});
    }
  }
}

TEST(Cases, TheBenchTierHasTheRowsOfItsTables) {
  const auto rows = cases_of("bench", 2);
  const auto names = names_of(rows);
  for (const char* stage :
       {"stage2_ddp_spawn", "stage3_ddp_torchrun", "stage4_ddp_amp", "stage5_accelerator",
        "stage6_trainer", "python_fabric", "python_lightning"}) {
    for (const int world : {1, 2}) {
      expect_rows(names, {row_of("basicnet", stage, world)});
      const auto bf16 = name_of(row_of("basicnet", stage, world, "bf16"));
      EXPECT_EQ(names.contains(bf16), std::string(stage) > "stage4") << bf16;
    }
  }
  auto one_of_one = row_of("convnet", "stage2_ddp_spawn");
  one_of_one.threads = 1;
  auto one_of_two = one_of_one;
  one_of_two.recipe = "basicnet";
  auto one_of_four = row_of("basicnet", "stage4_ddp_amp", 1, "bf16");
  one_of_four.threads = 1;
  // Each target on speed is a ratio of two of these, of those above, or of exact sums.
  expect_rows(names, {row_of("basicnet", "stage0_single_gpu"),
                      row_of("basicnet", "python_tuned"),
                      row_of("basicnet", "python_tuned_compile"),
                      row_of("basicnet", "python_tuned", 1, "bf16"),
                      row_of("basicnet", "python_tuned_compile", 1, "bf16"),
                      row_of("convnet", "stage0_single_gpu"),
                      row_of("convnet", "python_tuned"),
                      row_of("convnet", "python_tuned_compile"),
                      one_of_one,
                      one_of_two,
                      one_of_four,
                      row_of("basicnet", "libtorch_usual"),
                      row_of("basicnet", "pipeline", 2),
                      row_of("basicnet", "zero_redundancy", 2),
                      row_of("basicnet", "fully_sharded", 2),
                      row_of("basicnet", "cuda_graph"),
                      row_of("convnet", "cuda_graph"),
                      row_of("basicnet", "python_tuned_compile_graph", 1, "bf16"),
                      row_of("basicnet", "python_jax"),
                      row_of("convnet", "python_jax"),
                      row_of("convnet", "python_fabric", 2),
                      row_of("convnet", "python_lightning", 2)});
  EXPECT_FALSE(names.contains(name_of(row_of("convnet", "python_fabric"))));
  EXPECT_FALSE(names.contains(name_of(row_of("convnet", "python_tuned", 1, "bf16"))));
  EXPECT_TRUE(of_kind(rows, Kind::kFull).empty());
}

TEST(Cases, TheWholeTierHasThreeSeedsOfEachStageTwinAndOpponent) {
  const auto names = names_of(cases_of("whole", 2));
  for (const auto& [program, world] :
       {std::pair{"stage1_data_parallel", 2}, std::pair{"stage2_ddp_spawn", 2},
        std::pair{"stage6_trainer", 2}, std::pair{"python_ddp_torchrun", 2},
        std::pair{"python_trainer", 2}, std::pair{"python_jax", 1}, std::pair{"python_fabric", 2},
        std::pair{"python_lightning", 2}, std::pair{"libtorch_usual", 1}}) {
    for (const char* recipe : {"basicnet", "convnet"}) {
      auto row = row_of(recipe, program, world);
      row.kind = Kind::kFull;
      for (row.seed = 1; row.seed <= 3; ++row.seed) expect_rows(names, {row});
    }
  }
}

TEST(Cases, TheQuickTierHasStagesTwinsAndTunedPythonOnBothNetworks) {
  const auto rows = cases_of("quick", 2);
  const auto names = names_of(rows);
  for (auto slice : of_kind(cases_of("short", 2), Kind::kFull)) {
    slice.kind = Kind::kSlice;
    for (const char* recipe : {"basicnet", "convnet"}) {
      slice.recipe = recipe;
      expect_rows(names, {slice});
    }
  }
  expect_rows(names,
              {row_of("basicnet", "stage6_trainer"), row_of("basicnet", "python_trainer"),
               row_of("basicnet", "python_ddp_amp", 2, "bf16"), row_of("convnet", "python_tuned")});
  EXPECT_EQ(of_kind(rows, Kind::kSlice).size(), 25U + 15U);
  EXPECT_EQ(rows.size(), 40U + 16U) << "and the checks";
  for (const auto& row : of_kind(rows, Kind::kSlice)) {
    expect_words(row, row.recipe == "convnet" ? "--limit-train 1600" : "--limit-train 3200");
  }
}

TEST(Cases, ExactSumsStandBesideSumsInFloat) {
  const auto rows = cases_of("whole", 2);
  const auto sums = of_kind(rows, Kind::kSums);
  ASSERT_EQ(sums.size(), 8U) << "two worlds, each in float and with three micro-batches";
  for (const auto& row : sums) EXPECT_EQ(row.threads, 1) << name_of(row);
  EXPECT_EQ(name_of(sums.front()),
            "sums/basicnet/stage2_ddp_spawn/world:1/precision:fp32/threads:1");
  const std::string spawn = "bin/stage2_ddp_spawn --nprocs 2 --recipe basicnet ";
  const std::string rest = " --threads 1 --metrics runs/child.jsonl ";
  expect_words(sums.back(), spawn + "--sums exact --micro-batch 32" + rest +
                                "--epochs 1 --limit-train 14080 --limit-test 64 --quiet");
  const auto seeds = of_kind(rows, Kind::kSeeds);
  ASSERT_EQ(seeds.size(), 10U) << "five seeds, in float and exact";
  expect_words(seeds.back(), spawn + "--sums exact --micro-batch 16 --seed 5" + rest + "--quiet");
  expect_words(seeds.front(), spawn + "--seed 1" + rest + "--quiet");
}

TEST(Cases, MoreCpusAreDivided) {
  const auto names = names_of(cases_of("bench", 8));
  for (const auto& [program, world] :
       {std::pair{"stage0_single_gpu", 1}, std::pair{"stage2_ddp_spawn", 2},
        std::pair{"stage2_ddp_spawn", 8}}) {
    auto row = row_of("basicnet", program, world);
    row.threads = 8 / world;
    expect_rows(names, {row});
  }
  EXPECT_ERROR(cases_of("long", 2), UsageError, "--tier: ", "quick, bench, whole, got 'long'");
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
  for (const char* program :
       {"stage0_single_gpu", "pipeline", "python_trainer", "python_zero_redundancy",
        "python_pipeline", "python_fully_sharded", "python_cuda_graph", "python_tuned_compile",
        "python_jax", "python_lightning", "libtorch_usual"}) {
    EXPECT_GT(user_lines(fs::path(LADDER_SOURCE_DIR) / source_of(program)), 30.0) << program;
  }
}

ChildEnd run(const std::string& script, const TemporaryFolder& folder, int seconds = 20) {
  return run_child({.arguments = {"/bin/sh", "-c", script}, .environment = {{"WORD", "said"}}},
                   folder.path(), std::chrono::seconds(seconds));
}

// Exit code 77: the machine lacks something.
TEST(Child, ItsEndIsToldInWords) {
  const TemporaryFolder folder;
  for (const auto& [script, failure, available] :
       {std::tuple{"exit 0", "", true},
        {"echo one >&2; echo $WORD >&2; exit 3", "exit code 3; last line: said", true},
        {"echo error: no data >&2; echo ==== >&2; exit 3", "exit code 3; last line: error: no data",
         true},
        {"echo error: no compiler >&2; exit 77", "exit code 77; last line: error: no compiler",
         false},
        {"kill -SEGV $$", "ended by Segmentation fault; no output", true}}) {
    const auto end = run(script, folder);
    EXPECT_EQ(end.failure, failure);
    EXPECT_EQ(end.available, available) << script;
  }
  const Command command = {.arguments = {"/none/stage"}, .environment = {}};
  EXPECT_EQ(run_child(command, folder.path(), std::chrono::seconds(5)).failure,
            "/none/stage: No such file or directory");
}

// Whether a process is gone, or becomes so soon: what was killed takes a moment to end.
bool is_gone(const std::string& pid) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  do {
    std::ifstream file("/proc/" + pid + "/stat");
    std::string number;
    std::string name;
    std::string state;
    if (!(file >> number >> name >> state) || state == "Z") return true;
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

TEST(Child, IsWatchedEachSecond) {
  const TemporaryFolder folder;
  const auto go = folder.file("go");
  const Command command = {
      .arguments = {"/bin/sh", "-c",
                    fmt::format("echo 'epoch 1/1 2/9  loss 1' >&2; until [ -f {} ]; do :; done",
                                go)},
      .environment = {}};
  std::string steps;
  const auto watch = [&] {
    steps = steps_in(folder.file("stderr"));
    folder.write("go", "");
  };
  EXPECT_EQ(run_child(command, folder.path(), std::chrono::seconds(60), watch).failure, "");
  EXPECT_EQ(steps, " 2/9");
}

// What is written for six whole runs, of which the first takes half of the usual time, and a check.
std::string text_of_turns(bool terminal) {
  const CapturedStream stream;
  const Case whole = {.kind = Kind::kFull, .recipe = "basicnet", .program = "stage0_single_gpu"};
  const Case check = {.kind = Kind::kCheck, .recipe = "basicnet", .program = "stage6_trainer"};
  double now = 100.0;
  Turns turns(stream.get(), terminal, [&] { return now; });
  turns.announce(whole, 6);
  turns.announce(check, 1);
  for (int i = 0; i < 7; ++i) {
    const auto& row = i < 6 ? whole : check;
    turns.begin(row);
    now += i < 6 ? 9.0 : 1.5;
    if (i == 0) turns.show(row, " 9/10");
    turns.end(row, "result");
  }
  std::string text;
  for (auto part = stream.next_write(); !part.empty(); part = stream.next_write()) text += part;
  return text;
}

TEST(Turns, EachRowAddsALineWithTheRemainingTimeAtTheMeasuredSpeed) {
  const auto text = text_of_turns(false);
  EXPECT_TRUE(text.starts_with(
      "[1/7] stage0_single_gpu     basicnet  1 x 1  fp32  result  about 70 s left\n"));
  EXPECT_TRUE(text.ends_with("[7/7] stage6_trainer        basicnet  1 x 1  fp32  result\n"));
  EXPECT_EQ(std::ranges::count(text, '\n'), 7) << text;
  const std::string row = "[1/7] stage0_single_gpu     basicnet  1 x 1  fp32  ";  // is redrawn
  const auto terminal = text_of_turns(true);
  EXPECT_TRUE(terminal.starts_with(row + "training  about 2 min left\x1b[K\r" + row +
                                   "training 9/10  about 2 min left\x1b[K\r" + row +
                                   "result\x1b[K\n"))
      << terminal;
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

// The times of these events, in microseconds: data, forward, backward, communication, optimizer.
std::string phases_of(const std::vector<std::string>& events) {
  const TemporaryFolder folder;
  folder.write("trace.json", fmt::format(R"({{"traceEvents": [{}]}})", fmt::join(events, ", ")));
  const auto found = read_phases(folder.file("trace.json"));
  return fmt::format("{:.0f} {:.0f} {:.0f} {:.0f} {:.0f}", 1000 * found.data, 1000 * found.forward,
                     1000 * found.backward, 1000 * found.communication, 1000 * found.optimizer);
}

// Of three steps, each with `more` boxes at their times from its beginning.
std::string phases_with(const std::vector<std::tuple<const char*, int, int>>& more) {
  std::vector<std::string> boxes;
  for (const int at : {1000, 1100, 1200}) {
    boxes.push_back(step(at));
    for (const auto& [name, begin, length] : more) boxes.push_back(box(name, at + begin, length));
  }
  return phases_of(boxes);
}

TEST(Phases, AreTheTimesBetweenTheBoxesAndCollectivesAreCountedOnce) {
  EXPECT_EQ(phases_with({}), "10 30 35 19 6");
  // What holds up forward and backward is communication; what is behind backward is so anyway.
  EXPECT_EQ(phases_with({{"c10d::allgather_", 30, 4}, {"c10d::allreduce_", 55, 10}}),
            "10 26 25 33 6");
  EXPECT_EQ(phases_with({{"c10d::allreduce_", 80, 10}}), "10 30 35 19 6");
}

TEST(Phases, NeedTwoSteps) {
  EXPECT_ERROR(phases_of({step(1000)}), DataError,
               "expected a trace of two training steps or more, got 5 boxes of steps");
  EXPECT_ERROR(read_phases("/none.json"), DataError, "got 0 boxes of steps");
}

}  // namespace
}  // namespace ladder::bench
