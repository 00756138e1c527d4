// SPDX-License-Identifier: Apache-2.0
#include "ladder/observe/trackers.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/io/appended_file.h"
#include "ladder/io/json.h"
#include "ladder/observe/event_file.h"

namespace ladder {
namespace {

using Json = nlohmann::ordered_json;

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : json_text(value);
}

class JsonlTracker : public Tracker {
 public:
  std::string name() const override { return "jsonl"; }

  void start(const TrackedRun& run, const Json& config) override {
    lines_ = JsonLines(run.folder + "/metrics.jsonl", "logging_dir",
                       run.append ? OldRecords::kKeep : OldRecords::kReplace);
    lines_.write({{"record", "run"}, {"run", run.name}, {"config", config}});
  }

  void log(const std::map<std::string, double>& values, std::int64_t step) override {
    Json record = {{"record", "log"}, {"step", step}};
    for (const auto& [name, value] : values) record[name] = value;
    lines_.write(record);
  }

  void finish() override { lines_ = JsonLines(); }

 private:
  JsonLines lines_;
};

// A field of comma-separated values (RFC 4180).
std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

class CsvTracker : public Tracker {
 public:
  std::string name() const override { return "csv"; }

  void start(const TrackedRun& run, const Json& config) override {
    std::string lines = "name,value\n";
    for (const auto& [key, value] : config.items()) {
      lines += fmt::format("{},{}\n", csv_field(key), csv_field(text_of(value)));
    }
    AppendedFile(run.folder + "/config.csv").write(lines);
    metrics_ = AppendedFile(run.folder + "/metrics.csv",
                            run.append ? OldRecords::kKeep : OldRecords::kReplace);
    if (metrics_.size() == 0) metrics_.write("step,name,value\n");
  }

  void log(const std::map<std::string, double>& values, std::int64_t step) override {
    std::string lines;
    for (const auto& [name, value] : values) {
      lines += fmt::format("{},{},{}\n", step, csv_field(name), value);
    }
    metrics_.write(lines);
  }

  void finish() override { metrics_ = AppendedFile(); }

 private:
  AppendedFile metrics_;
};

std::string markdown_cell(std::string text) {
  for (std::size_t bar = text.find('|'); bar != std::string::npos; bar = text.find('|', bar + 2)) {
    text.insert(bar, 1, '\\');
  }
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

class TensorboardTracker : public Tracker {
 public:
  std::string name() const override { return "tensorboard"; }

  void start(const TrackedRun& run, const Json& config) override {
    file_ = std::make_unique<EventFile>(run.folder);
    is_resumed_ = run.append;
    has_config_ = !config.empty();
    if (!has_config_) return;
    file_->hparams(config);
    std::string table = "|name|value|\n|-|-|\n";
    for (const auto& [key, value] : config.items()) {
      table += fmt::format("|{}|{}|\n", markdown_cell(key), markdown_cell(text_of(value)));
    }
    file_->text("config", table);
  }

  void log(const std::map<std::string, double>& values, std::int64_t step) override {
    if (std::exchange(is_resumed_, false)) file_->continue_from(step);
    file_->scalars(values, step);
  }

  void finish() override {
    if (has_config_) file_->hparams_end();
    file_.reset();
  }

 private:
  std::unique_ptr<EventFile> file_;
  bool is_resumed_ = false;  // and has logged nothing so far
  bool has_config_ = false;
};

const std::vector<std::string>& tracker_names() {
  static const std::vector<std::string> names = {"jsonl", "csv", "tensorboard"};
  return names;
}

void check_run_name(const std::string& run_name) {
  const std::filesystem::path name(run_name);
  const bool outside = std::any_of(name.begin(), name.end(), [](const auto& part) {
    return part.empty() || part == "." || part == "..";
  });
  if (!run_name.empty() && name.is_relative() && !outside) return;
  throw UsageError::malformed("run name", "the name of a folder in logging_dir", run_name,
                              "name the run after its model, such as resnet");
}

void check_config(const Json& config) {
  if (!config.is_object()) {
    throw UsageError::malformed("configuration of the run", "names with values", config.type_name(),
                                "such as {{\"lr\", 0.1}}");
  }
  for (const auto& [name, value] : config.items()) {
    if (!value.is_structured()) continue;
    throw UsageError::malformed("configuration of the run",
                                fmt::format("a text, a number or a flag for {}", name),
                                value.type_name(), "use one name per value");
  }
}

}  // namespace

Trackers::Trackers(TrackersOptions options) : options_(std::move(options)) {
  for (const auto& name : options_.log_with) {
    const auto& names = name == "all" ? tracker_names() : std::vector<std::string>{name};
    for (const auto& each : names) {
      if (std::ranges::find(trackers_, each, &Tracker::name) != trackers_.end()) continue;
      trackers_.push_back(make_tracker(each));
    }
  }
  if (trackers_.empty() || !options_.logging_dir.empty()) return;
  throw UsageError::missing("log_with " + trackers_.front()->name(),
                            "logging_dir, the folder to write to", "set logging_dir = \"runs\"");
}

void Trackers::add(std::unique_ptr<Tracker> tracker) { trackers_.push_back(std::move(tracker)); }

void Trackers::start(const std::string& run_name) { start(run_name, Json::object()); }

void Trackers::start(const std::string& run_name, const Json& config) {
  if (started_) throw UsageError::conflict("start", "a run has started", "call finish() first");
  check_run_name(run_name);
  check_config(config);
  if (options_.is_main_process && !trackers_.empty()) {
    TrackedRun run = {.name = run_name, .folder = "", .append = options_.append};
    if (!options_.logging_dir.empty()) {
      run.folder = options_.logging_dir + "/" + run_name;
      std::error_code error;
      std::filesystem::create_directories(run.folder, error);
      if (error) throw SystemError::failed("create the folder", run.folder, error.value());
    }
    for (const auto& tracker : trackers_) tracker->start(run, config);
  }
  started_ = true;
}

void Trackers::log(const std::map<std::string, double>& values, std::int64_t step) {
  if (trackers_.empty()) return;
  if (!started_) throw UsageError::conflict("log", "no run was started", "call start() first");
  for (const auto& [name, value] : values) {
    if (!name.empty() && name != "record" && name != "step") continue;
    throw UsageError::malformed("log", "names other than '', 'record' and 'step'", name,
                                "these are reserved for the trackers");
  }
  if (!options_.is_main_process || values.empty()) return;
  for (const auto& tracker : trackers_) tracker->log(values, step);
}

void Trackers::finish() {
  if (!std::exchange(started_, false) || !options_.is_main_process) return;
  for (const auto& tracker : trackers_) tracker->finish();
}

std::unique_ptr<Tracker> make_tracker(std::string_view name) {
  if (name == "jsonl") return std::make_unique<JsonlTracker>();
  if (name == "csv") return std::make_unique<CsvTracker>();
  if (name == "tensorboard") return std::make_unique<TensorboardTracker>();
  throw UsageError::unknown_name("log_with", name, tracker_names());
}

}  // namespace ladder
