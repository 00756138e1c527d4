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

// Where the numbers of a training go while it runs: a curve a name, a point a step.
//
// A run has a name, which is its folder below `logging_dir`. Three kinds of tracker come with the
// library, each writes its own files there, and a run may have several:
//
//   jsonl        metrics.jsonl   {"record":"run","run":"basic","config":{"lr":0.001}}
//                                {"record":"log","step":10,"accuracy":98.1,"loss":0.25}
//   csv          metrics.csv     step,name,value
//                                10,accuracy,98.1
//                                10,loss,0.25
//                config.csv      name,value
//                                lr,0.001
//   tensorboard  events.out.tfevents.*: SCALARS, HPARAMS, and the configuration as TEXT
//
// The CSV has the long form, a line a value: its header never has to change when a later step
// brings a new name. pandas: read_csv(...).pivot(index="step", columns="name", values="value").
//
// All is with the operating system when log() returns, so a run that dies leaves all up to then.
// A run that starts again under its name replaces metrics.jsonl and metrics.csv, unless `append`
// is set, as for a run that is resumed. Steps after its checkpoint then stand there twice, the
// later ones below. TensorBoard files are never replaced: remove the folder for a fresh curve.
//
// Not for use by several threads.

// A run, as a tracker sees it.
struct TrackedRun {
  std::string name;     // such as "resnet"; also  the folder's name
  std::string folder;   // logging_dir/name, which exists; "" without a logging_dir
  bool append = false;  // go on with the files that are there
};

// One kind of tracker. Derive from it to send the numbers elsewhere.
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
  // The last call; not made for a run that ends by an error.
  virtual void finish() = 0;
};

struct TrackersOptions {
  std::vector<std::string> log_with;  // "jsonl", "csv", "tensorboard", or "all" for the three
  std::string logging_dir;            // the folder for all runs; made if it is missing
  bool is_main_process = true;        // on the others nothing is started or written
  bool append = false;                // a run that is resumed keeps what it wrote before
};

// The trackers of a training. Every rank has them and calls the same functions: those that are not
// the main process only check the names, so that a mistyped one stops all ranks alike.
class Trackers {
 public:
  // None: everything below does nothing.
  Trackers() = default;
  // Throws UsageError for an unknown name, or if `logging_dir` is missing. A name given twice
  // counts once.
  explicit Trackers(TrackersOptions options);

  // One more, of the caller's own kind, which may do without a logging_dir. Before start().
  void add(std::unique_ptr<Tracker> tracker);

  // Sets `append`, for a run that turns out to be resumed. Before start().
  void go_on() { options_.append = true; }

  // Starts a run. `run_name` may hold '/', but no "." or ".." between them: the run's folder lies
  // in logging_dir. Throws UsageError for a name or a configuration of another form, or if a run
  // is under way, and SystemError if a file cannot be written.
  void start(const std::string& run_name, const nlohmann::ordered_json& config);
  void start(const std::string& run_name);

  // A point on each curve. JSON has no NaN and no infinity: there they are null, in CSV nan and
  // inf. Throws UsageError if no run was started, and SystemError if a write fails.
  void log(const std::map<std::string, double>& values, std::int64_t step);

  // Ends the run: another may start. A run that is not finished counts as broken off.
  void finish();

 private:
  TrackersOptions options_;
  std::vector<std::unique_ptr<Tracker>> trackers_;
  bool started_ = false;
};

// Makes a tracker by name: "jsonl", "csv" or "tensorboard". Throws UsageError for another name.
std::unique_ptr<Tracker> make_tracker(std::string_view name);

}  // namespace ladder
