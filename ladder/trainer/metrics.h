// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace ladder {

// Numbers by name, in the order in which they were added: what a Trainer logs, and what an
// evaluation gives. m["eval_loss"] adds a name, m.at("eval_loss") throws std::out_of_range.
using Metrics = nlohmann::ordered_map<std::string, double>;

// The number of that name, or nullptr.
const double* find_metric(const Metrics& metrics, std::string_view name);

// How fast something was: NAME_runtime in seconds, NAME_samples_per_second, NAME_steps_per_second,
// rounded to 4, 3 and 3 decimals. Python's counterpart: transformers.trainer_utils.speed_metrics.
Metrics speed_metrics(std::string_view name, double seconds, double samples, double steps);

// As Python prints a float: the fewest digits that give the same number back, "1.0", "5e-05".
std::string python_float(double value);

// A line as the Trainer of transformers prints it: {'loss': '0.8757', 'epoch': '0.533'}, four
// digits a number. Without total_flos.
std::string log_line(const Metrics& logs);

// The lines that log_metrics of transformers prints: a heading, and the names in alphabetical order
// with aligned numbers; runtimes as h:mm:ss.
std::vector<std::string> metrics_lines(std::string_view split, const Metrics& metrics);

// As JSON, names sorted, and back. JSON has no NaN and no infinity: there they are null, which
// comes back as NaN.
nlohmann::json to_json(const Metrics& metrics);

// The table that a notebook shows during training: a row an evaluation, a column a metric.
//
//     Epoch  Training Loss  Validation Loss
//         1       0.875700         0.282633
//
// Python's counterpart: transformers.utils.notebook.NotebookTrainingTracker.
class MetricsTable {
 public:
  // One cell: a count, a number with six decimals, or "No log".
  struct Cell {
    std::string column;
    std::string text;
  };

  // The first column names the row.
  explicit MetricsTable(std::vector<std::string> columns = {}) : columns_(std::move(columns)) {}

  // Adds a row, whose first cell is that of the first column; or fills up the last row, if that has
  // the same first cell. A column that is not there yet is added.
  void write_line(const std::vector<Cell>& cells);

  bool empty() const { return rows_.empty(); }
  const std::vector<std::string>& columns() const { return columns_; }
  const std::vector<std::vector<std::string>>& rows() const { return rows_; }

  // Heading and rows, aligned to the right.
  std::vector<std::string> lines() const;

 private:
  std::vector<std::string> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace ladder
