// SPDX-License-Identifier: Apache-2.0
#include "bench/suite/cases.h"

#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "ladder/core/error.h"

namespace ladder::bench {
namespace {

constexpr const char* kHfDefaults = "basicnet-hf-defaults";
constexpr const char* kDdpPractice = "convnet-ddp-practice";
constexpr int kMaxRanks = 8;              // of the scaling line: more would have few images each
constexpr std::int64_t kBriefSteps = 30;  // of a twin, whose steps are long
constexpr std::int64_t kCheckSteps = 20;
constexpr std::int64_t kPhaseSteps = 10;  // the trace ends before
constexpr std::int64_t kCheckImages = 200;
constexpr std::array<std::int64_t, 3> kMicroBatches = {8, 16, 32};
constexpr std::int64_t kDefaultMicroBatch = 16;
constexpr int kSeedCount = 5;
constexpr int kWholeRuns = 3;  // seeds of each whole run

constexpr std::array<const char*, 7> kStages = {
    "stage0_single_gpu", "stage1_data_parallel", "stage2_ddp_spawn", "stage3_ddp_torchrun",
    "stage4_ddp_amp",    "stage5_accelerator",   "stage6_trainer"};
// The programs of beyond/, counted behind the stages.
constexpr std::array<const char*, 4> kBeyond = {"zero_redundancy", "pipeline", "fully_sharded",
                                                "cuda_graph"};
constexpr std::array<const char*, 11> kTwins = {
    "python_single",   "python_data_parallel", "python_ddp_spawn", "python_ddp_torchrun",
    "python_ddp_amp",  "python_accelerate",    "python_trainer",   "python_zero_redundancy",
    "python_pipeline", "python_fully_sharded", "python_cuda_graph"};
constexpr std::array<const char*, 11> kScripts = {
    "single.py",   "data_parallel.py", "ddp.py",       "ddp.py",
    "ddp.py",      "accelerated.py",   "trainer.py",   "zero_redundancy.py",
    "pipeline.py", "fully_sharded.py", "cuda_graph.py"};
// Python tuned for speed: opponents of stage 0, and in bf16 of stage 4 with one rank. Those with a
// graph are not run without a GPU.
constexpr std::array<const char*, 4> kTuned = {"python_tuned", "python_tuned_compile",
                                               "python_tuned_graph", "python_tuned_compile_graph"};
// Other libraries, each beside the stage that it resembles.
struct Opponent {
  const char* program;
  const char* script;
  std::size_t stage;
};
constexpr std::array<Opponent, 3> kOpponents = {{{"python_jax", "jax_jit.py", 0},
                                                 {"python_fabric", "fabric.py", 5},
                                                 {"python_lightning", "lightning_trainer.py", 6}}};
// LibTorch without ladder, as its examples are written: another opponent of stage 0.
constexpr const char* kUsual = "libtorch_usual";

const char* name_of(Kind kind) {
  constexpr std::array<const char*, 8> kNames = {"slice",  "full", "curve", "check",
                                                 "phases", "sums", "seeds", "brief"};
  return kNames.at(static_cast<std::size_t>(kind));
}

bool is_convnet(const std::string& recipe) { return recipe.starts_with("convnet"); }

std::int64_t batch_size(const std::string& recipe) { return is_convnet(recipe) ? 32 : 64; }

bool is_tuned(const std::string& program) { return program.starts_with(kTuned[0]); }

const Opponent* opponent_of(const std::string& program) {
  const auto* const found = std::ranges::find(kOpponents, program, &Opponent::program);
  return found == kOpponents.end() ? nullptr : found;
}

// The stage of a program, 0 to 6; 7 to 10 for those of beyond/.
std::size_t stage_of(const std::string& program) {
  if (is_tuned(program) || program == kUsual) return 0;
  if (const auto* const opponent = opponent_of(program)) return opponent->stage;
  std::vector<std::string> programs(kStages.begin(), kStages.end());
  programs.insert(programs.end(), kBeyond.begin(), kBeyond.end());
  for (std::size_t place = 0; place < programs.size(); ++place) {
    if (program == programs[place] || program == kTwins.at(place)) return place;
  }
  throw UsageError::unknown_name("program", program, programs);
}

// Whether all rows of the program have one process, which no flag says.
bool is_alone(std::size_t stage) { return stage == 0 || kTwins.at(stage) == kTwins.back(); }

using Words = std::vector<std::string>;

void append(Words& words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
}

Words torchrun(const Case& row, const Places& places) {
  return {tool(places, "torchrun"), "--standalone", "--nproc-per-node", std::to_string(row.world)};
}

// A stage with the flags for processes and precision.
Words start_of_stage(const Case& row, const Places& places) {
  const auto stage = stage_of(row.program);
  const std::string program = places.bin / row.program;
  const auto world = std::to_string(row.world);
  if (is_alone(stage)) return {program};  // and libtorch_usual
  if (stage == 1) {
    const std::vector<const char*> devices(static_cast<std::size_t>(row.world), "cpu");
    return {program, "--device-ids", fmt::format("{}", fmt::join(devices, ","))};
  }
  if (stage == 3) {
    auto words = torchrun(row, places);
    append(words, {"--no-python", program});
    return words;
  }
  Words words = {program, "--nprocs", world};
  if (stage == 4) append(words, {"--precision", row.precision});
  if (stage == 5 && row.precision != "fp32") append(words, {"--mixed-precision", row.precision});
  if (stage == 6 && row.precision != "fp32") append(words, {fmt::format("--{}", row.precision)});
  return words;
}

Words start_of_tuned(const Case& row, const Places& places) {
  Words words = {tool(places, "python3"), places.peers / "tuned.py", "--precision", row.precision};
  if (row.program.find("compile") != std::string::npos) words.emplace_back("--compile");
  if (row.program.ends_with("graph")) words.emplace_back("--cuda-graph");
  return words;
}

// The script of a Python program.
const char* script_of(const std::string& program) {
  if (is_tuned(program)) return "tuned.py";
  const auto* const opponent = opponent_of(program);
  return opponent != nullptr ? opponent->script : kScripts.at(stage_of(program));
}

Words start_of_twin(const Case& row, const Places& places) {
  if (is_tuned(row.program)) return start_of_tuned(row, places);
  const auto stage = stage_of(row.program);
  const std::string script = places.peers / script_of(row.program);
  if (stage == 3) {
    auto words = torchrun(row, places);
    append(words, {script});
    return words;
  }
  Words words = {tool(places, "python3"), script};
  if (stage == 1) append(words, {"--device", "cpu"});  // as stage 1, whose replicas are there
  if (stage == 2 || (stage >= 4 && !is_alone(stage)))
    append(words, {"--nprocs", std::to_string(row.world)});
  if (row.precision == "fp32") return words;
  append(words, {stage == 5 ? "--mixed-precision" : "--precision", row.precision});
  return words;
}

// Stage 5 with other ways for the batches: the main process reads for all, or each step has four
// batches of a quarter, whose gradients are averaged once (no_sync) or each time.
Words variant_of(const Case& row) {
  if (row.variant.empty()) return {};
  if (row.variant == "dispatch") return {"--dispatch-batches"};
  Words words = {"--gradient-accumulation-steps", "4", "--batch-size",
                 std::to_string(batch_size(row.recipe) / 4)};
  if (row.variant == "accumulate_sync") words.emplace_back("--sync-each-batch");
  return words;
}

// Threads of each process. The replicas of DataParallel share those of one; a check has one.
int threads_of(const Case& row) {
  const bool shared = stage_of(row.program) == 1 && row.kind != Kind::kCheck;
  return shared ? row.world * row.threads : row.threads;
}

Words recipe_of(const Case& row, const std::filesystem::path& folder) {
  Words words = {"--recipe", base_recipe(row)};
  if (row.width != 1) append(words, {"--width", std::to_string(row.width)});
  if (row.micro_batch > 0) {
    append(words, {"--sums", "exact", "--micro-batch", std::to_string(row.micro_batch)});
  }
  if (row.seed > 0) append(words, {"--seed", std::to_string(row.seed)});
  if (row.recipe == kHfDefaults) {
    append(words, {"--profile", "hf-defaults"});
    if (!is_twin(row)) {  // which writes nothing
      append(words, {"--save-strategy", "no", "--output-dir", folder / "trainer"});
    }
  }
  if (row.recipe == kDdpPractice && is_twin(row)) append(words, {"--batch-mode", "per-device"});
  if (row.recipe == kDdpPractice && !is_twin(row)) append(words, {"--profile", "ddp-practice"});
  return words;
}

// The checks compare the CPU's kernels, also on machines with GPUs.
Words check_of(const Case& row) {
  Words words;
  if (stage_of(row.program) != 1) append(words, {"--device", "cpu"});
  if (stage_of(row.program) == 4) words.emplace_back("--no-sync-bn");
  return words;
}

Words length_of(const Case& row) {
  const auto images = [&](std::int64_t steps) {
    return std::to_string(steps * batch_size(row.recipe));
  };
  if (row.steps > 0) {
    return {"--epochs", "1", "--limit-train", images(row.steps), "--limit-test", images(1)};
  }
  if (is_timed(row) || row.kind == Kind::kBrief) {
    const bool is_brief = row.kind == Kind::kBrief && is_twin(row);
    const auto steps = kWarmUpSteps + (is_brief ? kBriefSteps : row.timed_steps);
    return {"--epochs", "1", "--limit-train", images(steps), "--limit-test", images(1)};
  }
  if (row.kind == Kind::kCheck) {
    return {"--epochs",      "1",
            "--limit-train", images(kCheckSteps),
            "--limit-test",  std::to_string(kCheckImages)};
  }
  if (row.kind == Kind::kPhases) {
    return {"--epochs", "1", "--limit-train", images(kPhaseSteps), "--limit-test", images(1)};
  }
  if (row.epochs == 0) return {};
  return {"--epochs", std::to_string(row.epochs)};
}

// Operations of a convolution with square kernels over square images, without padding.
double convolution(double inputs, double outputs, double size, double kernel, double padding) {
  const double places = size + 2.0 * padding - kernel + 1.0;
  const double within = (places * kernel - padding * (padding + 1.0)) / (places * kernel);
  return 2.0 * inputs * outputs * places * places * kernel * kernel * within * within;
}

Case row_of(Kind kind, const char* recipe, const char* program, int world, int threads,
            const char* precision = "fp32") {
  return {.kind = kind,
          .recipe = recipe,
          .program = program,
          .world = world,
          .precision = precision,
          .threads = threads};
}

void add_checks(std::vector<Case>& rows, const char* recipe) {
  for (const char* stage : kStages) rows.push_back(row_of(Kind::kCheck, recipe, stage, 1, 1));
  for (std::size_t stage = 1; stage < kStages.size(); ++stage) {
    rows.push_back(row_of(Kind::kCheck, recipe, kStages.at(stage), 2, 1));
  }
}

// The checks of the short tier: each stage at the world size of its whole run, and stage 2 alone,
// whose weights connect stage 0 with the others.
void add_short_checks(std::vector<Case>& rows, const char* recipe) {
  for (const std::size_t stage : {0U, 2U}) {
    rows.push_back(row_of(Kind::kCheck, recipe, kStages.at(stage), 1, 1));
  }
  for (std::size_t stage = 1; stage < kStages.size(); ++stage) {
    rows.push_back(row_of(Kind::kCheck, recipe, kStages.at(stage), 2, 1));
  }
}

// The seven stages: the first with one process, the others with two processes or replicas.
void add_short(std::vector<Case>& rows, Kind kind, const char* recipe, int cpus) {
  const int each = std::max(1, cpus / 2);
  rows.push_back(row_of(kind, recipe, kStages[0], 1, cpus));
  for (std::size_t stage = 1; stage < kStages.size(); ++stage) {
    const char* const precision = stage == 4 ? "bf16" : "fp32";
    rows.push_back(row_of(kind, recipe, kStages.at(stage), 2, each, precision));
  }
}

// What ./run compares its whole runs with: the twin of each stage, the tuned Python program, and
// one process beside two.
void add_brief(std::vector<Case>& rows, int cpus) {
  std::vector<Case> stages;
  add_short(stages, Kind::kBrief, "basicnet", cpus);
  for (auto& row : stages) {
    row.program = kTwins.at(stage_of(row.program));
    rows.push_back(row);
  }
  rows.push_back(row_of(Kind::kBrief, "basicnet", kTuned[0], 1, cpus));
  for (const char* recipe : {"basicnet", "convnet"}) {
    for (const int world : {1, 2}) {
      rows.push_back(row_of(Kind::kBrief, recipe, kStages[2], world, 1));
    }
  }
}

// Each of them, and its Python twin.
void add_with_twins(std::vector<Case>& rows, const std::vector<Case>& stages) {
  for (auto row : stages) {
    rows.push_back(row);
    row.program = kTwins.at(stage_of(row.program));
    rows.push_back(row);
  }
}

void add_tuned(std::vector<Case>& rows, const char* recipe, int cpus) {
  for (const char* program : kTuned) {
    rows.push_back(row_of(Kind::kSlice, recipe, program, 1, cpus));
    if (!is_convnet(recipe)) {
      rows.push_back(row_of(Kind::kSlice, recipe, program, 1, cpus, "bf16"));
    }
  }
}

// Programs of other libraries, with the worlds that their stages have in rows of this kind.
void add_opponents(std::vector<Case>& rows, Kind kind, const char* recipe, int cpus) {
  for (const auto& [program, _, stage] : kOpponents) {
    if (stage == 0 || (kind == Kind::kSlice && !is_convnet(recipe))) {
      rows.push_back(row_of(kind, recipe, program, 1, cpus));
    }
    if (stage > 0) rows.push_back(row_of(kind, recipe, program, 2, std::max(1, cpus / 2)));
  }
  rows.push_back(row_of(kind, recipe, kUsual, 1, cpus));
}

// Every distributed stage with so many processes, in each of its precisions: stages 2 and 3 have
// fp32 alone.
void add_distributed(std::vector<Case>& rows, Kind kind, const char* recipe, int world, int cpus) {
  const int each = std::max(1, cpus / world);
  for (std::size_t stage = 2; stage < kStages.size(); ++stage) {
    rows.push_back(row_of(kind, recipe, kStages.at(stage), world, each));
    if (stage >= 4) rows.push_back(row_of(kind, recipe, kStages.at(stage), world, each, "bf16"));
  }
}

// Stage 0, and stage 1 with two replicas.
void add_one_process(std::vector<Case>& rows, Kind kind, const char* recipe, int cpus) {
  rows.push_back(row_of(kind, recipe, kStages[0], 1, cpus));
  rows.push_back(row_of(kind, recipe, kStages[1], 2, std::max(1, cpus / 2)));
}

// What each further rank of one thread brings.
void add_worlds(std::vector<Case>& rows, const char* recipe, const char* program,
                const char* precision, int cpus) {
  for (int world = 1; world <= std::min(cpus, kMaxRanks); world *= 2) {
    const auto row = row_of(Kind::kSlice, recipe, program, world, 1, precision);
    const auto same = [&](const Case& other) { return name_of(other) == name_of(row); };
    if (std::none_of(rows.begin(), rows.end(), same)) rows.push_back(row);
  }
}

void add_speed(std::vector<Case>& rows, const char* recipe, int cpus) {
  std::vector<Case> stages;
  add_one_process(stages, Kind::kSlice, recipe, cpus);
  if (!is_convnet(recipe)) add_distributed(stages, Kind::kSlice, recipe, 1, cpus);
  for (const char* program : kBeyond) {
    const int world = is_alone(stage_of(program)) ? 1 : 2;
    if (is_convnet(recipe) && world > 1) continue;
    stages.push_back(row_of(Kind::kSlice, recipe, program, world, std::max(1, cpus / world)));
  }
  add_distributed(stages, Kind::kSlice, recipe, 2, cpus);
  add_with_twins(rows, stages);
  add_tuned(rows, recipe, cpus);
  add_opponents(rows, Kind::kSlice, recipe, cpus);
  add_worlds(rows, recipe, kStages[2], "fp32", cpus);
  if (!is_convnet(recipe)) add_worlds(rows, recipe, kStages[4], "bf16", cpus);
  add_short(rows, Kind::kPhases, recipe, cpus);
}

// What ten minutes are enough for: each stage on two processes, and of basicnet alone too.
void add_quick(std::vector<Case>& rows, const char* recipe, int cpus) {
  std::vector<Case> stages;
  add_short(stages, Kind::kSlice, recipe, cpus);
  if (!is_convnet(recipe)) {
    for (std::size_t stage = 2; stage < kStages.size(); ++stage) {
      auto alone = stages.at(stage);
      alone.world = 1;
      alone.threads = cpus;
      stages.push_back(alone);
    }
  }
  const auto first = static_cast<std::ptrdiff_t>(rows.size());
  add_with_twins(rows, stages);
  rows.push_back(row_of(Kind::kSlice, recipe, kTuned[0], 1, cpus));
  std::for_each(rows.begin() + first, rows.end(), [](Case& row) { row.timed_steps = kBriefSteps; });
}

// Beside stage 5 on two processes, whose ranks read their own parts.
void add_variants(std::vector<Case>& rows, int cpus) {
  for (const char* variant : {"dispatch", "accumulate", "accumulate_sync"}) {
    rows.push_back(row_of(Kind::kSlice, "basicnet", kStages[5], 2, std::max(1, cpus / 2), "fp32"));
    rows.back().variant = variant;
  }
}

// Whole runs of every stage, twin and opponent, each with the same seeds.
void add_whole_runs(std::vector<Case>& rows, const char* recipe, int cpus) {
  std::vector<Case> stages;
  add_one_process(stages, Kind::kFull, recipe, cpus);
  add_distributed(stages, Kind::kFull, recipe, 2, cpus);
  std::vector<Case> runs;
  add_with_twins(runs, stages);
  add_opponents(runs, Kind::kFull, recipe, cpus);
  for (int seed = 1; seed <= kWholeRuns; ++seed) {
    for (auto& row : runs) row.seed = seed;
    rows.insert(rows.end(), runs.begin(), runs.end());
  }
}

// Accuracy after fewer epochs.
void add_curves(std::vector<Case>& rows, int cpus) {
  for (const std::int64_t epochs : {1, 2}) {
    auto row = row_of(Kind::kCurve, "convnet", kStages[0], 1, cpus);
    row.epochs = epochs;
    add_with_twins(rows, {row});
  }
}

// A second process and 16 bits pay with more work per step.
void add_widths(std::vector<Case>& rows, int cpus) {
  const int each = std::max(1, cpus / 2);
  for (const int width : {2, 4}) {
    for (auto row : {row_of(Kind::kSlice, "convnet", kStages[0], 1, cpus),
                     row_of(Kind::kSlice, "convnet", kStages[2], 2, each),
                     row_of(Kind::kSlice, "convnet", kStages[4], 2, each, "bf16")}) {
      row.width = width;
      rows.push_back(row);
    }
  }
}

// Recipes of the source tutorials that the stages do not have.
void add_claims(std::vector<Case>& rows, int cpus) {
  add_with_twins(rows,
                 {row_of(Kind::kFull, kHfDefaults, kStages[6], 1, cpus),
                  row_of(Kind::kFull, kDdpPractice, kStages[4], 2, std::max(1, cpus / 2), "bf16")});
}

// What exact sums cost: stage 2 with one thread per rank, beside the same with sums in float. And
// what they do to the accuracy, over some seeds.
void add_exact(std::vector<Case>& rows) {
  for (const int world : {1, 2}) {
    auto row = row_of(Kind::kSums, "basicnet", kStages[2], world, 1);
    rows.push_back(row);
    for (const auto size : kMicroBatches) {
      row.micro_batch = size;
      rows.push_back(row);
    }
  }
  auto row = row_of(Kind::kSeeds, "basicnet", kStages[2], 2, 1);
  for (row.seed = 1; row.seed <= kSeedCount; ++row.seed) {
    for (const std::int64_t size : {std::int64_t{0}, kDefaultMicroBatch}) {
      row.micro_batch = size;
      rows.push_back(row);
    }
  }
}

}  // namespace

bool is_timed(const Case& row) {
  return row.steps == 0 && (row.kind == Kind::kSlice || row.kind == Kind::kSums);
}

std::string tool(const Places& places, const char* name) {
  return places.venv.empty() ? name : (places.venv / "bin" / name).string();
}

bool is_twin(const Case& row) { return row.program.starts_with("python_"); }

std::filesystem::path source_of(const std::string& program) {
  const std::filesystem::path peers = "bench/peers";
  if (program == kUsual) return peers / "libtorch_usual.cpp";
  if (program.starts_with("python_")) return peers / script_of(program);
  const bool is_beyond = std::ranges::find(kBeyond, program) != kBeyond.end();
  return std::filesystem::path(is_beyond ? "beyond" : "") / program / "main.cpp";
}

std::string base_recipe(const Case& row) { return is_convnet(row.recipe) ? "convnet" : "basicnet"; }

std::string name_of(const Case& row) {
  auto name = fmt::format("{}/{}/{}/world:{}/precision:{}/threads:{}", name_of(row.kind),
                          row.recipe, row.program, row.world, row.precision, row.threads);
  if (row.width != 1) name += fmt::format("/width:{}", row.width);
  if (row.micro_batch > 0) name += fmt::format("/micro_batch:{}", row.micro_batch);
  if (row.epochs > 0) name += fmt::format("/epochs:{}", row.epochs);
  if (row.seed > 0) name += fmt::format("/seed:{}", row.seed);
  if (!row.variant.empty()) name += fmt::format("/variant:{}", row.variant);
  return name;
}

Command command_of(const Case& row, const Places& places, const std::filesystem::path& folder) {
  Command command;
  command.arguments = is_twin(row) ? start_of_twin(row, places) : start_of_stage(row, places);
  append(command.arguments, recipe_of(row, folder));
  append(command.arguments, variant_of(row));
  append(command.arguments,
         {"--threads", std::to_string(threads_of(row)), "--metrics", folder / kMetricsFile});
  append(command.arguments, length_of(row));
  if (row.kind == Kind::kCheck) append(command.arguments, check_of(row));
  if (row.kind == Kind::kPhases) append(command.arguments, {"--trace", folder / kTraceFile});
  // Whole runs show their steps.
  if (!is_twin(row) && row.kind != Kind::kFull) append(command.arguments, {"--quiet"});
  if (stage_of(row.program) == 3) {
    command.environment.emplace("OMP_NUM_THREADS", std::to_string(row.threads));
  }
  return command;
}

double training_flops(const std::string& recipe, int width) {
  const double w = width;
  double first = convolution(1, 32 * w, 28, 3, 0);
  double others =
      convolution(32 * w, 64 * w, 26, 3, 0) + 2.0 * 9216 * w * 128 * w + 2.0 * 128 * w * 10;
  if (is_convnet(recipe)) {
    first = convolution(1, 16 * w, 28, 5, 2);
    others = convolution(16 * w, 32 * w, 14, 5, 2) + 2.0 * 1568 * w * 10;
  }
  return 2.0 * first + 3.0 * others;
}

std::vector<Case> cases_of(const std::string& tier, int cpus) {
  std::vector<Case> rows;
  if (tier == "short") {
    add_short(rows, Kind::kFull, "basicnet", cpus);
    add_short_checks(rows, "basicnet");
    add_brief(rows, cpus);
  } else if (tier == "quick") {
    for (const char* recipe : {"basicnet", "convnet"}) {
      add_short_checks(rows, recipe);
      add_quick(rows, recipe, cpus);
    }
  } else if (tier == "bench") {
    for (const char* recipe : {"basicnet", "convnet"}) {
      add_checks(rows, recipe);
      add_speed(rows, recipe, cpus);
    }
    add_variants(rows, cpus);
    add_widths(rows, cpus);
  } else if (tier == "whole") {
    for (const char* recipe : {"basicnet", "convnet"}) {
      add_checks(rows, recipe);
      add_whole_runs(rows, recipe, cpus);
    }
    add_curves(rows, cpus);
    add_claims(rows, cpus);
    add_exact(rows);
  } else {
    throw UsageError::unknown_name("--tier", tier,
                                   std::vector<std::string>{"short", "quick", "bench", "whole"});
  }
  return rows;
}

}  // namespace ladder::bench
