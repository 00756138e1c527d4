// SPDX-License-Identifier: Apache-2.0
// Compares the stages with each other and with their Python twins: each benchmark is a child
// process whose records are read. They run in random order, so that other load of the machine
// affects all alike.
//   build/bin/suite --tier short --benchmark_out=short.json
//   build/bin/suite --benchmark_filter=slice/basicnet --benchmark_out=slices.json
//   build/bin/suite --benchmark_list_tests
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>
#include <regex>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/suite/cases.h"
#include "bench/suite/child.h"
#include "bench/suite/machine.h"
#include "bench/suite/phases.h"
#include "bench/suite/turns.h"
#include "bench/suite/user_lines.h"
#include "ladder/core/error.h"
#include "ladder/core/log.h"
#include "ladder/core/threads.h"
#include "ladder/core/unique_fd.h"
#include "ladder/launch/exit_status.h"
#include "ladder/observe/progress_bar.h"

namespace ladder::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::chrono::seconds kDeadline{1200};
constexpr int kRepetitions = 5;
constexpr int kQuickRepetitions = 3;

struct SuiteOptions {
  std::string tier = "bench";
  fs::path folder = "runs/bench";
  int cpus = usable_cpus();
  int repetitions = kRepetitions;  // of slices
  std::int64_t steps = 0;          // of every row; 0 = as the tier has
  Places places = {.bin = fs::path(LADDER_BINARY_DIR) / "bin",
                   .peers = fs::path(LADDER_SOURCE_DIR) / "bench" / "peers",
                   .venv = fs::path(LADDER_SOURCE_DIR) / ".venv"};
};

// What the program of a row needs is not on this machine.
class NotAvailable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Prints nothing: the table is made from the file of results.
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

// Throws std::runtime_error: a record that lacks a number is no result.
double number_of(const json& record, const char* name) {
  const auto found = record.find(name);
  if (found != record.end() && found->is_number()) return found->get<double>();
  throw std::runtime_error(fmt::format("its record has no {}", name));
}

// Locks the folder as long as the program runs.
UniqueFd locked(const fs::path& folder) {
  fs::create_directories(folder);
  UniqueFd file(::open((folder / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!file) throw SystemError::failed("write", (folder / "lock").string(), errno);
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    throw UsageError::conflict("--folder " + folder.string(), "another suite writes there",
                               "wait for it, or give another --folder");
  }
  return file;
}

class Runner {
 public:
  Runner(SuiteOptions options, Peaks peaks) : options_(std::move(options)), peaks_(peaks) {}

  void add(const Case& row) {
    const int repetitions = repetitions_of(row);
    const auto name = name_of(row);
    if (is_wanted(name, repetitions)) turns_.announce(row, repetitions);
    benchmark::RegisterBenchmark(name.c_str(),
                                 [this, row](benchmark::State& state) { run(row, state); })
        ->Iterations(1)
        ->Repetitions(repetitions)
        ->UseManualTime()
        ->Unit(benchmark::kSecond);
  }
  int failed() const { return failed_; }

  bool is_wanted(const Case& row) const { return is_wanted(name_of(row), repetitions_of(row)); }

 private:
  int repetitions_of(const Case& row) const { return is_timed(row) ? options_.repetitions : 1; }

  void run(const Case& row, benchmark::State& state) {
    turns_.begin(row);
    for (auto _ : state) {
      try {
        // What this machine cannot run is tried once, not in each repetition.
        const auto lacks = not_available_.find(name_of(row));
        if (lacks != not_available_.end()) throw NotAvailable(lacks->second);
        turns_.end(row, run_once(row, state));
      } catch (const NotAvailable& error) {
        not_available_.emplace(name_of(row), error.what());
        const auto result = fmt::format("not run: {}", error.what());
        turns_.end(row, result);
        state.SkipWithError(result.c_str());
        return;
      } catch (const std::exception& error) {
        const auto said = options_.folder / (flat(name_of(row)) + ".stderr");
        std::error_code ignored;  // there may be none
        fs::copy_file(options_.folder / "stderr", said, fs::copy_options::overwrite_existing,
                      ignored);
        turns_.end(row, fmt::format("failed: {}; output: {}", error.what(), said.string()));
        ++failed_;
        state.SkipWithError(error.what());
        return;
      }
    }
  }

  // Whether Google Benchmark's filter matches the name that the row has there.
  static bool is_wanted(const std::string& name, int repetitions) {
    auto filter = benchmark::GetBenchmarkFilter();
    const bool negative = filter.starts_with('-');
    if (negative) filter.erase(0, 1);
    const auto whole = fmt::format("{}/iterations:1/repeats:{}/manual_time", name, repetitions);
    try {
      return filter == "all" || std::regex_search(whole, std::regex(filter)) != negative;
    } catch (const std::regex_error& error) {
      throw UsageError::malformed("--benchmark_filter", "a regular expression", filter,
                                  error.what());
    }
  }

  static std::string flat(std::string name) {
    std::replace(name.begin(), name.end(), '/', '_');
    return name;
  }

  // Returns the result in words.
  std::string run_once(const Case& row, benchmark::State& state) {
    for (const char* name : {kMetricsFile, kTraceFile}) fs::remove(options_.folder / name);
    const auto end =
        run_child(command_of(row, options_.places, options_.folder), options_.folder, kDeadline,
                  [&] { turns_.show(row, steps_in(options_.folder / "stderr")); });
    if (!end.available) throw NotAvailable(end.failure);
    if (!end.failure.empty()) {
      // ./run is about the stages: a Python without torch is no failure of it.
      if (row.kind == Kind::kBrief && is_twin(row)) throw NotAvailable(end.failure);
      throw std::runtime_error(end.failure);
    }
    const auto metrics = options_.folder / kMetricsFile;
    const auto result = last_record(metrics, "result");
    if (result.is_null()) throw std::runtime_error("it wrote no result");
    const auto run = last_record(metrics, "run");
    require_setup(row, result, run);
    report(row, result, run, end, state);
    if (const auto log = last_record(metrics, "log"); !log.is_null()) {
      state.counters["logged_loss"] = number_of(log, "loss");
    }
    return summary_of(row, result, end.seconds);
  }

  static std::string summary_of(const Case& row, const json& result, double seconds) {
    if (is_timed(row)) return fmt::format("{:.2f} s for 200 steps", 200 * step_seconds(result));
    if (row.kind == Kind::kPhases) return "trace of 10 steps";
    if (row.kind == Kind::kBrief)
      return fmt::format("{:.1f} ms a step", 1e3 * step_seconds(result));
    if (row.kind == Kind::kCheck) {
      const auto weights = result.value("weights_sha256", "unknown");
      return fmt::format("weights {:.8} after 20 steps", weights);
    }
    return fmt::format("{:6.2f} %  {:5.1f} s", number_of(result, "accuracy"), seconds);
  }

  // A launcher may have started another number of processes.
  static void require_setup(const Case& row, const json& result, const json& run) {
    const bool replicas = row.program.find("data_parallel") != std::string::npos;
    if (result.value("recipe", "") != base_recipe(row) ||
        result.value("precision", "") != row.precision ||
        run.value("world_size", 0) != (replicas ? 1 : row.world)) {
      throw std::runtime_error("its record belongs to another row");
    }
  }

  void report(const Case& row, const json& result, const json& run, const ChildEnd& end,
              benchmark::State& state) {
    auto& counters = state.counters;
    if (is_timed(row)) {
      report_speed(row, result, state);
    } else if (row.kind == Kind::kBrief) {
      state.SetIterationTime(step_seconds(result));
    } else {
      state.SetIterationTime(end.seconds);
      for (const char* name :
           {"accuracy", "correct", "seen", "eval_loss", "train_loss", "total_seconds"}) {
        counters[name] = number_of(result, name);
      }
    }
    if (row.kind == Kind::kPhases) report_phases(counters);
    for (const char* name : {"batch_size", "lr"}) {
      if (run.contains(name)) counters[name] = number_of(run, name);
    }
    for (const char* name : {"steps", "train_seconds", "peak_rss_bytes"}) {
      counters[name] = number_of(result, name);
    }
    counters["startup_seconds"] = number_of(result, "first_step_at") - end.started_at;
    report_bytes(result, counters);
    const auto lines = user_lines(fs::path(LADDER_SOURCE_DIR) / source_of(row.program));
    if (lines) counters["user_lines"] = *lines;
    counters["steal_ticks"] = static_cast<double>(steal_ticks());
    counters["load"] = load_average();
    state.SetLabel(label_of(row, result));
  }

  // What a program does not count is missing.
  static void report_bytes(const json& result, benchmark::UserCounters& counters) {
    if (result.contains("sent_bytes")) {
      counters["sent_bytes_per_step"] =
          number_of(result, "sent_bytes") / number_of(result, "steps");
    }
    if (result.contains("device_peak_bytes")) {
      counters["device_peak_bytes"] = number_of(result, "device_peak_bytes");
    }
    const auto read = result.value("read_bytes", std::vector<double>());
    if (read.empty() || read.front() == 0.0) return;
    counters["read_bytes_main"] = read.front();
    if (read.size() == 1) return;
    const double others = std::accumulate(read.begin() + 1, read.end(), 0.0);
    counters["read_bytes_others"] = others / static_cast<double>(read.size() - 1);
  }

  static std::string label_of(const Case& row, const json& result) {
    auto label =
        fmt::format("weights_sha256={} device={}", result.value("weights_sha256", "unknown"),
                    result.value("device", "unknown"));
    if (result.contains("replicas")) {
      label += fmt::format(" replicas={}", result["replicas"].dump());
    }
    if (row.kind == Kind::kFull && result.contains("misclassified")) {
      std::vector<std::string> wrong;
      for (const auto& one : result["misclassified"]) {
        wrong.push_back(fmt::format("{}:{}", one.at(0).get<int>(), one.at(1).get<int>()));
      }
      label += fmt::format(" misclassified={}", fmt::join(wrong, ","));
    }
    return label;
  }

  static double seconds_of_slice(const json& result) {
    return number_of(result, "train_seconds") - number_of(result, "warm_up_seconds");
  }

  static double step_seconds(const json& result) {
    return seconds_of_slice(result) / (number_of(result, "steps") - kWarmUpSteps);
  }

  // Of the steps after the warm-up.
  void report_speed(const Case& row, const json& result, benchmark::State& state) {
    const double steps = number_of(result, "steps");
    const double trained = number_of(result, "train_seconds");
    const double seconds = seconds_of_slice(result);
    const double images =
        number_of(result, "samples_per_second") * trained * (steps - kWarmUpSteps) / steps;
    state.SetIterationTime(200 * step_seconds(result));
    state.counters["samples_per_second"] = images / seconds;
    if (result.value("device", "") == "cpu") {
      state.counters["percent_of_floor"] = 100.0 * floor_seconds(row, images) / seconds;
    }
  }

  void report_phases(benchmark::UserCounters& counters) const {
    const auto phases = read_phases(options_.folder / kTraceFile);
    counters["phase_data_ms"] = phases.data;
    counters["phase_forward_ms"] = phases.forward;
    counters["phase_backward_ms"] = phases.backward;
    counters["phase_communication_ms"] = phases.communication;
    counters["phase_optimizer_ms"] = phases.optimizer;
  }

  // The least time of the arithmetic of so many images on the threads of this row.
  double floor_seconds(const Case& row, double images) const {
    const int threads = std::min(row.world * row.threads, options_.cpus);
    double gflops = threads == 1 ? peaks_.one_thread : peaks_.all * threads / options_.cpus;
    if (row.precision == "bf16") gflops *= peaks_.bfloat16 / peaks_.all;
    return images * training_flops(row.recipe, row.width) / (gflops * 1e9);
  }

  SuiteOptions options_;
  Peaks peaks_;
  Turns turns_{stderr, is_terminal(stderr)};
  std::map<std::string, std::string> not_available_;  // the reason of each such row
  int failed_ = 0;
};

// Reads the suite's flags; the rest of `arguments` is for Google Benchmark.
SuiteOptions read_options(std::vector<std::string>& arguments) {
  SuiteOptions options;
  CLI::App app("Compares the stages with each other and with their Python twins.", "suite");
  app.footer(
      "Besides, the flags of Google Benchmark: --benchmark_list_tests,\n"
      "--benchmark_filter=REGEX, --benchmark_out=FILE.json [results.json in the folder]");
  app.allow_extras();
  app.add_option(
         "--tier", options.tier,
         "rows to run; short: those of ./run; quick: times from 30 steps, ten minutes on two "
         "cores; bench: times of 200 steps, an hour; whole: whole runs with three seeds, two hours")
      ->capture_default_str();
  app.add_option("--folder", options.folder, "folder for the files of the runs")
      ->capture_default_str();
  app.add_option("--cpus", options.cpus, "CPUs to divide among the processes")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  const auto* const repetitions =
      app.add_option("--slice-repetitions", options.repetitions,
                     "runs of each slice; default 5, of the tier quick 3")
          ->check(CLI::Range(1, 1024));
  app.add_option(
         "--steps", options.steps,
         "training steps of every row, for weights and bytes instead of times; 0 = as many as "
         "the row has")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--bin", options.places.bin, "folder of the stages");
  app.add_option("--peers", options.places.peers, "folder of their Python twins");
  app.add_option("--venv", options.places.venv,
                 "Python's environment; if there is none, python3 and torchrun of the PATH");
  try {
    auto reversed = std::vector<std::string>(arguments.rbegin(), arguments.rend());
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);
  }
  arguments = app.remaining();
  if (options.tier == "quick" && repetitions->count() == 0) options.repetitions = kQuickRepetitions;
  if (!fs::exists(options.places.venv)) options.places.venv.clear();
  return options;
}

// The short tier runs each row once, after stage 0 in random order. Google Benchmark shuffles the
// repetitions of the other one.
std::vector<Case> rows_of(const SuiteOptions& options) {
  auto rows = cases_of(options.tier, options.cpus);
  for (auto& row : rows) row.steps = options.steps;
  if (options.tier == "short") {
    std::shuffle(rows.begin() + 1, rows.end(), std::mt19937(std::random_device{}()));
  }
  return rows;
}

void initialize_benchmark(const std::string& tier, const std::vector<std::string>& arguments) {
  static std::string program = "suite";  // Google Benchmark keeps the address
  std::vector<std::string> words = {
      fmt::format("--benchmark_enable_random_interleaving={}", tier != "short"),
      "--benchmark_out_format=json"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers = {program.data()};
  for (auto& word : words) pointers.push_back(word.data());
  int count = static_cast<int>(pointers.size());
  benchmark::Initialize(&count, pointers.data());
  if (count > 1) {
    throw UsageError::malformed("flags", "a flag of suite", pointers[1], "suite --help lists them");
  }
}

// A record may be published: paths in the project are relative to it.
std::string without_root(std::string text) {
  const std::string root = LADDER_SOURCE_DIR "/";
  for (auto at = text.find(root); at != std::string::npos; at = text.find(root, at)) {
    text.erase(at, root.size());
  }
  return text;
}

Peaks describe(const SuiteOptions& options, const std::string& command_line) {
  benchmark::AddCustomContext("tier", options.tier);
  benchmark::AddCustomContext("argv", without_root(command_line));
  for (const auto& [name, value] : describe_machine(
           LADDER_SOURCE_DIR "/data/mnist/train-images-idx3-ubyte.gz",
           options.places.bin / "stage0_single_gpu", tool(options.places, "python3"))) {
    benchmark::AddCustomContext(name, value);
  }
  if (options.tier == "short") return {};  // it has no row with a floor
  const auto peaks = measure_peaks(options.cpus);
  benchmark::AddCustomContext("peak_gflops_1", fmt::format("{:.1f}", peaks.one_thread));
  benchmark::AddCustomContext("peak_gflops", fmt::format("{:.1f}", peaks.all));
  benchmark::AddCustomContext("peak_gflops_bf16", fmt::format("{:.1f}", peaks.bfloat16));
  return peaks;
}

bool has_flag(const std::vector<std::string>& arguments, const char* flag) {
  return std::any_of(arguments.begin(), arguments.end(),
                     [&](const auto& word) { return word.starts_with(flag); });
}

void run_suite(std::vector<std::string> arguments) {
  const auto command_line = fmt::format("suite {}", fmt::join(arguments, " "));
  const auto options = read_options(arguments);
  const bool lists = has_flag(arguments, "--benchmark_list_tests");
  const auto results = options.folder / "results.json";
  const bool names_results = lists || has_flag(arguments, "--benchmark_out=");
  if (!names_results) {
    fs::create_directories(options.folder);
    arguments.push_back("--benchmark_out=" + results.string());
  }
  const auto rows = rows_of(options);
  initialize_benchmark(options.tier, arguments);
  const auto lock = lists ? UniqueFd() : locked(options.folder);
  Runner runner(options, lists ? Peaks{} : describe(options, command_line));
  // Google Benchmark empties the file of results before it looks.
  if (std::ranges::none_of(rows, [&](const Case& row) { return runner.is_wanted(row); })) {
    throw UsageError::conflict("--benchmark_filter", "matches no row",
                               "--benchmark_list_tests shows all");
  }
  for (const auto& row : rows) runner.add(row);
  NoReporter nothing;
  benchmark::RunSpecifiedBenchmarks(&nothing);
  if (!names_results) fmt::print(stderr, "the results are in {}\n", results.string());
  if (runner.failed() > 0) {
    throw std::runtime_error(fmt::format("{} runs failed; see the table", runner.failed()));
  }
}

}  // namespace
}  // namespace ladder::bench

int main(int argc, char** argv) {
  return ladder::call_and_report(
      [&] { ladder::bench::run_suite(std::vector<std::string>(argv + 1, argv + argc)); });
}
