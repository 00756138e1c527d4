// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace ladder {

// Numbers by name, in insertion order: the logs of a Trainer and the results of an evaluation.
// m["eval_loss"] adds a name, m.at("eval_loss") throws std::out_of_range.
using Metrics = nlohmann::ordered_map<std::string, double>;

// The number of that name, or nullptr.
const double* find_metric(const Metrics& metrics, std::string_view name);

// NAME_runtime in seconds, NAME_samples_per_second and NAME_steps_per_second, rounded to 4, 3 and 3
// decimals. Python's counterpart: transformers.trainer_utils.speed_metrics.
Metrics speed_metrics(std::string_view name, double seconds, double samples, double steps);

// A float as Python prints it: the fewest digits that read back the same, "1.0", "5e-05".
std::string python_float(double value);

// A log line of the Trainer of transformers: {'loss': '0.8757', 'epoch': '0.533'}, with four digits
// per number, without total_flos.
std::string log_line(const Metrics& logs);

// The table of log_metrics of transformers: a heading, and the names in alphabetical order with
// aligned numbers; runtimes as h:mm:ss.
std::vector<std::string> metrics_lines(std::string_view split, const Metrics& metrics);

// A JSON object, sorted by name. NaN and infinity, which JSON lacks, become null.
nlohmann::json to_json(const Metrics& metrics);

// The table that a notebook shows during training: one row per evaluation, one column per metric.
//
//     Epoch  Training Loss  Validation Loss
//         1       0.875700         0.282633
//
// Python's counterpart: transformers.utils.notebook.NotebookTrainingTracker.
class MetricsTable {
 public:
  struct Cell {
    std::string column;
    std::string text;  // a count, a number with six decimals, or "No log"
  };

  // The first column names the row.
  explicit MetricsTable(std::vector<std::string> columns = {}) : columns_(std::move(columns)) {}

  // Adds a row, or completes the last row if its first cell is the same. The first cell belongs to
  // the first column. Adds missing columns.
  void write_line(const std::vector<Cell>& cells);

  bool empty() const { return rows_.empty(); }
  const std::vector<std::string>& columns() const { return columns_; }
  const std::vector<std::vector<std::string>>& rows() const { return rows_; }

  // Heading and rows, right-aligned.
  std::vector<std::string> lines() const;

 private:
  std::vector<std::string> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace ladder
