// SPDX-License-Identifier: Apache-2.0
#include "ladder/trainer/progress_callback.h"

#include <fmt/core.h>

#include <cmath>
#include <ranges>

#include "ladder/core/log.h"
#include "ladder/core/text.h"

namespace ladder {
namespace {

ProgressOptions bar_options(std::int64_t total, const char* label, const TrainerEvent& event) {
  return {.total = total,
          .label = label,
          .enabled = event.accelerator.is_main_process(),
          .terminal = is_terminal(stderr)};
}

std::string cell_of(double value) { return fmt::format("{:.6f}", value); }

// "Exact Match" for "eval_exact_match".
std::string column_of(const std::string& metric) {
  std::string column;
  for (auto word : split(to_lower(metric.substr(metric.find('_') + 1)), '_')) {
    if (!column.empty()) column += ' ';
    if (!word.empty() && word[0] >= 'a' && word[0] <= 'z') word[0] -= 'a' - 'A';
    column += word;
  }
  return column == "Loss" ? "Validation Loss" : column;
}

bool is_about_time(const std::string& metric) {
  for (const char* end :
       {"_runtime", "_samples_per_second", "_steps_per_second", "_model_preparation_time"}) {
    if (metric.ends_with(end)) return true;
  }
  return metric == "epoch" || metric == "total_flos";
}

std::string training_loss(const TrainerState& state) {
  for (const auto& entry : std::views::reverse(state.log_history)) {
    if (const double* const loss = find_metric(entry.values, "loss")) return cell_of(*loss);
  }
  return "No log";
}

MetricsTable::Cell first_cell(const TrainerEvent& event) {
  if (event.args.eval_strategy != IntervalStrategy::kEpoch) {
    return {"Step", fmt::format("{}", event.state.global_step)};
  }
  return {"Epoch", fmt::format("{}", static_cast<std::int64_t>(event.state.epoch))};
}

void print(const MetricsTable& table, const Accelerator& accelerator) {
  for (const auto& line : table.lines()) accelerator.print(line);
}

}  // namespace

void PrinterCallback::on_log(TrainerEvent& event) {
  event.accelerator.print(log_line(*event.logs));
}

void PrinterCallback::on_predict(TrainerEvent& event) {
  event.accelerator.print(log_line(*event.metrics));
}

void ProgressCallback::on_train_begin(TrainerEvent& event) {
  training_ = std::make_unique<Bar>(bar_options(event.state.max_steps, "training", event));
}

void ProgressCallback::on_step_end(TrainerEvent& event) {
  if (!training_) on_train_begin(event);  // added during the training
  training_->samples += event.batch->global_size * event.accelerator.gradient_accumulation_steps();
  training_->progress.update(event.state.global_step, training_->samples, loss_);
  clear_for_evaluation(event);
}

void ProgressCallback::on_epoch_end(TrainerEvent& event) { clear_for_evaluation(event); }

// The evaluation prints a banner.
void ProgressCallback::clear_for_evaluation(const TrainerEvent& event) {
  if (training_ && event.control.should_evaluate) training_->progress.clear();
}

void ProgressCallback::on_train_end(TrainerEvent& /*event*/) {
  if (training_) training_->progress.finish();
  training_.reset();
}

void ProgressCallback::on_prediction_step(TrainerEvent& event) {
  if (!prediction_) {  // the clock starts after the first batch, whose samples do not count
    if (training_) training_->progress.clear();
    prediction_ =
        std::make_unique<Bar>(bar_options(event.eval_dataloader->size(), "evaluation", event));
  } else {
    prediction_->samples += event.batch->global_size;
  }
  prediction_->progress.update(++prediction_->steps, prediction_->samples, std::nan(""));
}

void ProgressCallback::on_evaluate(TrainerEvent& /*event*/) { prediction_.reset(); }

void ProgressCallback::on_predict(TrainerEvent& event) {
  if (prediction_) prediction_->progress.finish();
  prediction_.reset();
  event.accelerator.print(log_line(*event.metrics));
}

void ProgressCallback::on_log(TrainerEvent& event) {
  if (const double* const loss = find_metric(*event.logs, "loss")) loss_ = *loss;
  if (prediction_) prediction_->progress.finish();
  if (training_) training_->progress.clear();
  event.accelerator.print(log_line(*event.logs));
}

void TableCallback::on_train_begin(TrainerEvent& event) {
  in_training_ = true;
  std::vector<std::string> columns = {first_cell(event).column, "Training Loss"};
  if (event.args.eval_strategy != IntervalStrategy::kNo) columns.emplace_back("Validation Loss");
  table_ = MetricsTable(columns);
}

void TableCallback::on_log(TrainerEvent& event) {
  if (!in_training_ || event.args.eval_strategy != IntervalStrategy::kNo) return;
  const double* const loss = find_metric(*event.logs, "loss");
  if (loss != nullptr) table_.write_line({first_cell(event), {"Training Loss", cell_of(*loss)}});
}

void TableCallback::on_evaluate(TrainerEvent& event) {
  std::vector<MetricsTable::Cell> cells = {first_cell(event),
                                           {"Training Loss", training_loss(event.state)},
                                           {"Validation Loss", "No log"}};
  for (const auto& [name, value] : *event.metrics) {
    if (is_about_time(name)) continue;
    const auto column = column_of(name);
    if (column == "Validation Loss") {
      cells[2].text = cell_of(value);
    } else {
      cells.push_back({column, cell_of(value)});
    }
  }
  if (!in_training_) table_ = MetricsTable({cells.front().column});
  table_.write_line(cells);
  if (!in_training_) print(table_, event.accelerator);
}

void TableCallback::on_train_end(TrainerEvent& event) {
  in_training_ = false;
  if (!table_.empty()) print(table_, event.accelerator);
}

}  // namespace ladder
