// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace ladder::bench {

// The purpose of a run.
enum class Kind {
  kSlice,   // its speed: 200 steps after the warm-up, again and again
  kFull,    // its accuracy: the whole recipe
  kCurve,   // the same with fewer epochs: a point of accuracy over time
  kCheck,   // its weights: a few steps in fp32 on one thread
  kPhases,  // its times per part of a step, from a trace of a few steps
  kSums,    // as kSlice: the price of exact sums
  kSeeds,   // as kFull, with another seed: the accuracy of exact sums
  kBrief    // its time per step, once, from few steps
};

inline constexpr int kWarmUpSteps = 20;  // of a slice, before the steps that are timed

// One row of the comparison: a program and its start. Recipes are those of the stages, basicnet and
// convnet, and the two with numbers in the source tutorials:
//   basicnet-hf-defaults   the Trainer with the defaults of transformers
//   convnet-ddp-practice   a batch of its own on each rank: fewer and larger steps
struct Case {
  Kind kind = Kind::kSlice;
  std::string recipe;   // "basicnet", ...
  std::string program;  // a stage, one of beyond/, python_... for its Python twin, python_tuned...,
                        // python_ and another library, libtorch_usual
  int world = 1;        // processes, or replicas of stage 1
  std::string precision = "fp32";
  int threads = 1;                 // of each process
  int width = 1;                   // channel multiplier
  std::int64_t epochs = 0;         // 0 = the recipe's
  std::int64_t micro_batch = 0;    // of exact sums; 0 = sums in float
  int seed = 0;                    // 0 = the recipe's
  std::string variant;             // of stage 5: how batches reach the ranks; empty = its defaults
  std::int64_t timed_steps = 200;  // of a slice, after the warm-up
  std::int64_t steps = 0;  // 0 = as many as the kind has, else not a measurement but a check
};

// Whether the time of 200 steps is what it measures.
bool is_timed(const Case& row);

// Where the programs are.
struct Places {
  std::filesystem::path bin;    // the stages
  std::filesystem::path peers;  // their twins
  std::filesystem::path venv;   // of Python; empty: python3 and torchrun are on the PATH
};

// One of Python's programs: "python3", "torchrun".
std::string tool(const Places& places, const char* name);

struct Command {
  std::vector<std::string> arguments;              // the program first
  std::map<std::string, std::string> environment;  // what is added to this process's
};

// The files of a child in its folder.
inline constexpr const char* kMetricsFile = "child.jsonl";
inline constexpr const char* kTraceFile = "child.trace.json";

// "slice/basicnet/stage0_single_gpu/world:1/precision:fp32/threads:2", then the width if it is
// not 1, the micro-batch of exact sums, epochs and seed if they are not the recipe's, and the
// variant.
std::string name_of(const Case& row);

// The recipe of its record.
std::string base_recipe(const Case& row);

// The source that its user writes, from the root of the project.
std::filesystem::path source_of(const std::string& program);

// Its command, with its records in `folder`.
Command command_of(const Case& row, const Places& places, const std::filesystem::path& folder);

// Whether the program is a Python one.
bool is_twin(const Case& row);

// Floating-point operations of one training sample: forward, and both halves of backward except the
// gradient of the images, which is not computed. A multiplication and an addition are two. Only
// convolutions, without their padding, and matrix products count.
double training_flops(const std::string& recipe, int width = 1);

// The rows of a tier on a machine with so many CPUs:
//   short   those of `./run`: one whole run per stage, that of stage 0 first, the checks that
//           connect them, and steps of their Python twins and of one process
//   quick   those of `./run bench --quick`: times of 30 steps, of stages, twins and tuned Python
//   bench   those of `./run bench`: times of 200 steps
//   whole   those of `./run whole`: whole runs, with several seeds
std::vector<Case> cases_of(const std::string& tier, int cpus);

}  // namespace ladder::bench
