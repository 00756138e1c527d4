// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "ladder/comm/process_group.h"
#include "ladder/core/error.h"
#include "ladder/core/log.h"
#include "ladder/data/data_loader.h"
#include "ladder/io/appended_file.h"
#include "ladder/monitor/evaluation.h"
#include "ladder/monitor/run_setup.h"
#include "ladder/monitor/training_monitor.h"
#include "mnist/options.h"
#include "mnist/recipe.h"

namespace mnist {

// The record of a run: a log line at the start, the result lines of the tutorials at the end, and
// all of it as JSON lines with --metrics: a "run" header, an "epoch" record each and a "result".
// docs/formats.md has the fields.
//
// Result lines go to the standard output, log lines to the standard error. The clock of `time
// elapsed` starts at construction, so construct it first: reading the data counts. All ranks call
// it alike; rank 0 alone prints and writes. result() is a collective.
class Record {
 public:
  // Opens the metrics file. Throws UsageError when its folder is missing.
  Record(RecordOptions options, Recipe recipe,
         ladder::ProcessGroup group = ladder::ProcessGroup::single());

  const ladder::Log& log() const { return log_; }

  // Call it before the first epoch.
  void begin(const ladder::RunSetup& setup, const ladder::DataLoader& train,
             const ladder::DataLoader& test, const torch::nn::Module& model);

  void epoch(const ladder::EpochSummary& summary);

  // A "log" record: a mean loss over the last steps, as a Trainer logs it.
  void log_loss(std::int64_t step, double loss);

  // Prints accuracy and time and writes the result. `total` counts all ranks. `more`: further
  // numbers for the record, by name. Throws SystemError if any record but the header, which begin()
  // writes, could not be written: a full disk for the metrics must not cost the weights.
  void result(const ladder::Evaluation& total, const ladder::TrainingTotals& training,
              const torch::nn::Module& model, const std::map<std::string, double>& more = {});

 private:
  static std::string data_text(const ladder::DataLoader& train, const ladder::DataLoader& test);
  void write_header(const ladder::DataLoader& train, const ladder::DataLoader& test,
                    std::int64_t parameters);
  void append(const nlohmann::ordered_json& record);

  RecordOptions options_;
  Recipe recipe_;
  ladder::ProcessGroup group_;
  double started_;
  ladder::Log log_;
  ladder::JsonLines metrics_;
  std::optional<ladder::SystemError> failed_;  // of metrics_, for result()
  ladder::RunSetup setup_;
  std::int64_t micro_batch_ = 0;  // of the model; 0 = none
};

}  // namespace mnist
