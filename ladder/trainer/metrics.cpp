// SPDX-License-Identifier: Apache-2.0
#include "ladder/trainer/metrics.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

namespace ladder {
namespace {

constexpr const char* kNoLog = "No log";

double rounded(double value, int decimals) {
  const double power = std::pow(10.0, decimals);
  return std::nearbyint(value * power) / power;
}

// "0:01:05.25": Python's timedelta, with hundredths.
std::string time_text(double seconds) {
  constexpr std::int64_t kDay = 86'400;
  const auto whole = static_cast<std::int64_t>(seconds);
  const auto hundredths = static_cast<int>(std::abs(seconds - static_cast<double>(whole)) * 100.0);
  const std::int64_t rest = (whole % kDay + kDay) % kDay;
  const std::int64_t days = (whole - rest) / kDay;
  const bool is_one = days == 1 || days == -1;
  const std::string day = days == 0 ? "" : fmt::format("{} day{}, ", days, is_one ? "" : "s");
  return fmt::format("{}{}:{:02}:{:02}.{:02}", day, rest / 3600, rest / 60 % 60, rest % 60,
                     hundredths);
}

std::string metric_text(const std::string& name, double value) {
  if (name.find("_runtime") != std::string::npos) return time_text(value);
  if (name == "total_flos") return fmt::format("{}GF", static_cast<std::int64_t>(value) >> 30);
  return python_float(rounded(value, 4));
}

std::string aligned(const std::vector<std::string>& cells, const std::vector<std::size_t>& widths) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    texts.push_back(fmt::format("{:>{}}", cells[i], widths[i]));
  }
  return fmt::format("{}", fmt::join(texts, "  "));
}

}  // namespace

const double* find_metric(const Metrics& metrics, std::string_view name) {
  const auto found = std::ranges::find(metrics, name, &Metrics::value_type::first);
  return found == metrics.end() ? nullptr : &found->second;
}

Metrics speed_metrics(std::string_view name, double seconds, double samples, double steps) {
  Metrics metrics;
  metrics[fmt::format("{}_runtime", name)] = rounded(seconds, 4);
  if (seconds <= 0.0) return metrics;
  metrics[fmt::format("{}_samples_per_second", name)] = rounded(samples / seconds, 3);
  metrics[fmt::format("{}_steps_per_second", name)] = rounded(steps / seconds, 3);
  return metrics;
}

std::string python_float(double value) {
  auto text = fmt::format("{}", value);
  if (std::isfinite(value) && text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string log_line(const Metrics& logs) {
  std::vector<std::string> items;
  for (const auto& [name, value] : logs) {
    if (name != "total_flos") items.push_back(fmt::format("'{}': '{:.4g}'", name, value));
  }
  return fmt::format("{{{}}}", fmt::join(items, ", "));
}

std::vector<std::string> metrics_lines(std::string_view split, const Metrics& metrics) {
  std::map<std::string, std::string> texts;
  std::size_t name_width = 0;
  std::size_t text_width = 0;
  for (const auto& [name, value] : metrics) {
    const auto& text = texts[name] = metric_text(name, value);
    name_width = std::max(name_width, name.size());
    text_width = std::max(text_width, text.size());
  }
  std::vector<std::string> lines = {fmt::format("***** {} metrics *****", split)};
  for (const auto& [name, text] : texts) {
    lines.push_back(fmt::format("  {:<{}} = {:>{}}", name, name_width, text, text_width));
  }
  return lines;
}

nlohmann::json to_json(const Metrics& metrics) {
  auto json = nlohmann::json::object();
  for (const auto& [name, value] : metrics) {
    json[name] = std::isfinite(value) ? nlohmann::json(value) : nlohmann::json();
  }
  return json;
}

void MetricsTable::write_line(const std::vector<Cell>& cells) {
  for (const auto& cell : cells) {
    if (std::find(columns_.begin(), columns_.end(), cell.column) != columns_.end()) continue;
    columns_.push_back(cell.column);
    for (auto& row : rows_) row.emplace_back(kNoLog);
  }
  const auto text_of = [&](const std::string& column) -> std::optional<std::string> {
    const auto found = std::ranges::find(cells, column, &Cell::column);
    return found == cells.end() ? std::nullopt : std::optional(found->text);
  };
  const bool same_row = !rows_.empty() && rows_.back().front() == text_of(columns_.front());
  if (!same_row) rows_.emplace_back(columns_.size(), kNoLog);
  auto& row = rows_.back();
  for (std::size_t i = 0; i < columns_.size(); ++i) row[i] = text_of(columns_[i]).value_or(row[i]);
}

std::vector<std::string> MetricsTable::lines() const {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    widths.push_back(columns_[i].size());
    for (const auto& row : rows_) widths[i] = std::max(widths[i], row.at(i).size());
  }
  std::vector<std::string> lines = {aligned(columns_, widths)};
  for (const auto& row : rows_) lines.push_back(aligned(row, widths));
  return lines;
}

}  // namespace ladder
