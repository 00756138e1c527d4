// SPDX-License-Identifier: Apache-2.0
// Compares the stages with each other and with their Python twins: each benchmark is a child
// process whose records are read. Google Benchmark draws the order by lot, so that what else the
// machine does falls on all alike.
//   build/bin/suite --tier short --benchmark_out=short.json
//   build/bin/suite --benchmark_filter=slice/basicnet --benchmark_out=slices.json
//   build/bin/suite --benchmark_list_tests
#include <benchmark/benchmark.h>
#include <fmt/core.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/suite/cases.h"
#include "bench/suite/child.h"
#include "bench/suite/machine.h"
#include "bench/suite/phases.h"
#include "ladder/core/error.h"
#include "ladder/core/exit_status.h"
#include "ladder/core/progress.h"
#include "ladder/core/threads.h"

namespace ladder::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::chrono::seconds kDeadline{1200};
constexpr int kRepetitions = 5;

struct SuiteOptions {
  std::string tier = "bench";
  std::string folder = "runs/bench";
  int cpus = usable_cpus();
  int repetitions = kRepetitions;  // of slices
  Places places = {.bin = fs::path(LADDER_BINARY_DIR) / "bin",
                   .peers = fs::path(LADDER_SOURCE_DIR) / "bench" / "peers",
                   .venv = fs::path(LADDER_SOURCE_DIR) / ".venv"};
};

// Tells how far the suite is, on the standard error.
class Turns {
 public:
  void announce(const Case& row, int runs) {
    total_ += runs;
    work_left_ += runs * work_of(row);
  }
  void begin(const Case& row) {
    ++done_;
    const auto left = work_done_ > 0.0 ? fmt::format("about {:.0f} min left", minutes_left())
                                       : std::string("the first");
    fmt::print(stderr, "[{}/{}] {}  {}\n", done_, total_, name_of(row), left);
    work_done_ += work_of(row);
    work_left_ -= work_of(row);
  }

 private:
  double minutes_left() const {
    return (steady_seconds() - started_) / 60.0 / work_done_ * work_left_;
  }
  // How the rows compare in length, roughly.
  static double work_of(const Case& row) {
    if (row.kind == Kind::kFull || row.kind == Kind::kCurve) return 40.0;
    return row.kind == Kind::kSlice ? 8.0 : 2.0;
  }

  int total_ = 0;
  int done_ = 0;
  double work_done_ = 0.0;
  double work_left_ = 0.0;
  double started_ = steady_seconds();
};

// Prints nothing: the results are in the file, and the table is made of it.
class NoReporter : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

json last_record(const fs::path& metrics, const std::string& kind) {
  std::ifstream file(metrics);
  json found;
  for (std::string line; std::getline(file, line);) {
    auto record = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (record.is_object() && record.value("record", "") == kind) found = std::move(record);
  }
  return found;
}

double number_of(const json& result, const char* name) {
  const auto found = result.find(name);
  return found != result.end() && found->is_number() ? found->get<double>() : 0.0;
}

// Lines of a stage that are neither blank nor a comment nor an #include: what its user writes.
double user_lines(const std::string& stage) {
  std::ifstream file(fs::path(LADDER_SOURCE_DIR) / stage / "main.cpp");
  double lines = 0.0;
  for (std::string line; std::getline(file, line);) {
    const auto begin = line.find_first_not_of(" \t");
    if (begin == std::string::npos) continue;
    const auto text = line.substr(begin);
    if (!text.starts_with("//") && !text.starts_with('#')) ++lines;
  }
  return lines;
}

class Runner {
 public:
  Runner(SuiteOptions options, double peak_gflops)
      : options_(std::move(options)), peak_(peak_gflops / options_.cpus) {}

  void add(const Case& row) {
    const int repetitions = row.kind == Kind::kSlice ? options_.repetitions : 1;
    const auto name = name_of(row);
    if (std::regex_search(name, filter_)) turns_.announce(row, repetitions);
    benchmark::RegisterBenchmark(name.c_str(),
                                 [this, row](benchmark::State& state) { run(row, state); })
        ->Iterations(1)
        ->Repetitions(repetitions)
        ->UseManualTime()
        ->Unit(benchmark::kSecond);
  }
  int failed() const { return failed_; }

 private:
  void run(const Case& row, benchmark::State& state) {
    turns_.begin(row);
    for (auto _ : state) {
      const fs::path folder = options_.folder;
      for (const char* name : {kMetricsFile, kTraceFile}) fs::remove(folder / name);
      const auto sent = loopback_bytes();
      const auto end =
          run_child(command_of(row, options_.places, folder), options_.folder, kDeadline);
      const auto result = last_record(folder / kMetricsFile, "result");
      if (!end.failure.empty() || result.is_null()) {
        const auto why = end.failure.empty() ? "it wrote no result" : end.failure;
        fmt::print(stderr, "  failed: {}\n", why);
        ++failed_;
        state.SkipWithError(why.c_str());
        return;
      }
      report(row, result, end, state);
      state.counters["loopback_bytes_per_step"] =
          static_cast<double>(loopback_bytes() - sent) / number_of(result, "steps");
    }
  }

  void report(const Case& row, const json& result, const ChildEnd& end, benchmark::State& state) {
    auto& counters = state.counters;
    if (row.kind == Kind::kSlice) {
      report_speed(row, result, state);
    } else {
      state.SetIterationTime(number_of(result, "total_seconds"));
      for (const char* name : {"accuracy", "correct", "seen", "eval_loss", "train_loss"}) {
        counters[name] = number_of(result, name);
      }
    }
    if (row.kind == Kind::kPhases) report_phases(counters);
    counters["steps"] = number_of(result, "steps");
    counters["train_seconds"] = number_of(result, "train_seconds");
    counters["peak_rss_bytes"] = number_of(result, "peak_rss_bytes");
    counters["startup_seconds"] = number_of(result, "first_step_at") - end.started_at;
    if (!is_twin(row)) counters["user_lines"] = user_lines(row.program);
    counters["steal_ticks"] = static_cast<double>(steal_ticks());
    counters["load"] = load_average();
    auto label = "weights_sha256=" + result.value("weights_sha256", std::string("unknown"));
    if (result.contains("replicas"))
      label += fmt::format(" replicas={}", result["replicas"].dump());
    state.SetLabel(label);
  }

  // Of the steps after the warm-up.
  void report_speed(const Case& row, const json& result, benchmark::State& state) {
    constexpr double kWarmUp = 20.0;
    const double steps = number_of(result, "steps");
    const double trained = number_of(result, "train_seconds");
    const double seconds = trained - number_of(result, "warm_up_seconds");
    const double images =
        number_of(result, "samples_per_second") * trained * (steps - kWarmUp) / steps;
    state.SetIterationTime(seconds);
    state.counters["samples_per_second"] = images / seconds;
    state.counters["percent_of_floor"] = 100.0 * floor_seconds(row, images) / seconds;
  }

  void report_phases(benchmark::UserCounters& counters) {
    const auto phases = read_phases(fs::path(options_.folder) / kTraceFile);
    counters["phase_data_ms"] = phases.data;
    counters["phase_forward_ms"] = phases.forward;
    counters["phase_backward_ms"] = phases.backward;
    counters["phase_communication_ms"] = phases.communication;
    counters["phase_optimizer_ms"] = phases.optimizer;
  }

  // What the arithmetic of so many images takes at least on the threads of this row.
  double floor_seconds(const Case& row, double images) const {
    const double threads = std::min(row.world * row.threads, options_.cpus);
    const double gflops = peak_ * threads * (row.precision == "bf16" ? 2.0 : 1.0);
    return images * training_flops(row.recipe, row.width) / (gflops * 1e9);
  }

  SuiteOptions options_;
  double peak_;                                         // of a thread
  std::regex filter_{benchmark::GetBenchmarkFilter()};  // whose rows are run
  Turns turns_;
  int failed_ = 0;
};

SuiteOptions read_options(int argc, char** argv) {
  SuiteOptions options;
  CLI::App app("Compares the stages with each other and with their Python twins.", "suite");
  app.add_option("--tier", options.tier, "short: what ./run shows; bench: all");
  app.add_option("--folder", options.folder, "for the files of the runs");
  app.add_option("--cpus", options.cpus, "CPUs to divide among the processes");
  app.add_option("--slice-repetitions", options.repetitions, "how often each slice is timed");
  app.add_option("--bin", options.places.bin, "folder of the stages");
  app.add_option("--venv", options.places.venv,
                 "Python's environment; what is not there is looked for on the PATH");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);
  }
  if (!fs::exists(options.places.venv)) options.places.venv.clear();
  return options;
}

void run_suite(int argc, char** argv) {
  auto options = read_options(argc, argv);
  fs::create_directories(options.folder);
  benchmark::AddCustomContext("tier", options.tier);
  benchmark::AddCustomContext("argv", fmt::format("{}", fmt::join(argv, argv + argc, " ")));
  double peak = 0.0;
  for (const auto& [name, value] :
       describe_machine(LADDER_SOURCE_DIR "/data/mnist/train-images-idx3-ubyte.gz",
                        options.places.bin / "stage0_single_gpu")) {
    benchmark::AddCustomContext(name, value);
    if (name == "peak_gflops") peak = std::strtod(value.c_str(), nullptr);
  }
  Runner runner(options, peak);
  for (const auto& row : cases_of(options.tier, options.cpus)) runner.add(row);
  NoReporter nothing;
  if (benchmark::RunSpecifiedBenchmarks(&nothing) == 0) {
    throw UsageError::missing("--benchmark_filter", "a row that it matches",
                              "--benchmark_list_tests shows all");
  }
  if (runner.failed() > 0) {
    throw std::runtime_error(fmt::format("{} runs failed; the table says why", runner.failed()));
  }
}

}  // namespace
}  // namespace ladder::bench

int main(int argc, char** argv) {
  std::vector<char*> arguments(argv, argv + argc);
  std::string interleaved = "--benchmark_enable_random_interleaving=true";
  std::string form = "--benchmark_out_format=json";
  arguments.insert(arguments.begin() + 1, {interleaved.data(), form.data()});
  int count = static_cast<int>(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  return ladder::call_and_report([&] { ladder::bench::run_suite(count, arguments.data()); });
}
