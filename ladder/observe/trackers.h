// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace ladder {

// Trackers record the numbers of a training while it runs: one curve per name, one point per step.
//
// The name of a run is its folder below `logging_dir`, with the files of its trackers: jsonl, csv,
// tensorboard (docs/formats.md, "Files of trackers"). log() passes all to the operating system
// before it returns, so a run that dies leaves all points up to then. Not for use by several
// threads.

// A run, as a tracker sees it.
struct TrackedRun {
  std::string name;     // such as "resnet"
  std::string folder;   // logging_dir/name, which exists; "" without a logging_dir
  bool append = false;  // append to the files of an earlier run
};

// One kind of tracker. Derive from it to send the numbers to another service.
class Tracker {
 public:
  Tracker() = default;
  virtual ~Tracker() = default;
  Tracker(const Tracker&) = delete;
  Tracker& operator=(const Tracker&) = delete;

  virtual std::string name() const = 0;

  // The first call. `config` is an object of texts, numbers, flags and nulls.
  virtual void start(const TrackedRun& run, const nlohmann::ordered_json& config) = 0;
  // `values` is not empty; no name in it is "", "record" or "step".
  virtual void log(const std::map<std::string, double>& values, std::int64_t step) = 0;
  // The last call. A run that ends by an error does not make it.
  virtual void finish() = 0;
};

struct TrackersOptions {
  std::vector<std::string> log_with;  // "jsonl", "csv", "tensorboard", or "all" for the three
  std::string logging_dir;            // the folder for all runs; created if it is missing
  bool is_main_process = true;        // other processes write nothing
  bool append = false;                // append to the files of an earlier run
};

// The trackers of a training. All ranks call the same functions. Ranks other than the main process
// only check the names, so that a mistyped one stops all ranks alike.
class Trackers {
 public:
  // No trackers: all functions do nothing.
  Trackers() = default;
  // Throws UsageError for an unknown name, or if `logging_dir` is missing. Ignores repeated names.
  explicit Trackers(TrackersOptions options);

  // Adds a tracker of the caller's own kind, which may do without a logging_dir. Before start().
  void add(std::unique_ptr<Tracker> tracker);

  // Sets `append`, for a run that has been resumed. Before start().
  void go_on() { options_.append = true; }

  // Starts a run. `run_name` may contain '/', but no part "." or "..": the run's folder is inside
  // logging_dir. Throws UsageError for an invalid name or configuration, or if a run has started,
  // and SystemError if a file cannot be written.
  void start(const std::string& run_name, const nlohmann::ordered_json& config);
  void start(const std::string& run_name);

  // Adds a point to each curve. NaN and infinity are null in JSON, nan and inf in CSV. Throws
  // UsageError if no run has started, and SystemError if a write fails.
  void log(const std::map<std::string, double>& values, std::int64_t step);

  // Ends the run; another may start. Without it, TensorBoard shows the run as interrupted.
  void finish();

 private:
  TrackersOptions options_;
  std::vector<std::unique_ptr<Tracker>> trackers_;
  bool started_ = false;
};

// Makes a tracker by name: "jsonl", "csv" or "tensorboard". Throws UsageError for another name.
std::unique_ptr<Tracker> make_tracker(std::string_view name);

}  // namespace ladder
