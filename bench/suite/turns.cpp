// SPDX-License-Identifier: Apache-2.0
#include "bench/suite/turns.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace ladder::bench {
namespace {

// The usual seconds of a run on two cores, start and end of the program included.
double usual_seconds(const Case& row) {
  const double factor = is_twin(row) ? 2.5 : 1.0;
  if (row.kind == Kind::kBrief) return is_twin(row) ? 8.0 : 4.0;
  if (is_timed(row)) return 6.0 * factor;
  const bool is_short = row.kind == Kind::kCheck || row.kind == Kind::kPhases;
  return (is_short ? 1.5 : 18.0) * factor;
}

const char* work_of(const Case& row) {
  if (is_timed(row)) return "200 steps";
  if (row.kind == Kind::kBrief) return "steps";
  if (row.kind == Kind::kCheck) return "20 steps";
  return row.kind == Kind::kPhases ? "10 steps" : "training";
}

}  // namespace

Turns::Turns(std::FILE* stream, bool terminal, std::function<double()> clock)
    : stream_(stream), terminal_(terminal), clock_(std::move(clock)), started_(clock_()) {}

void Turns::announce(const Case& row, int runs) {
  total_ += runs;
  work_left_ += runs * usual_seconds(row);
}

void Turns::begin(const Case& row) {
  ++begun_;
  row_began_ = clock_();
  show(row, "");
}

void Turns::show(const Case& row, const std::string& steps) {
  if (!terminal_) return;
  const double work = std::min(clock_() - row_began_, 0.9 * usual_seconds(row));
  fmt::print(stream_, "{}  {}{}{}\x1b[K\r", heading(row), work_of(row), steps, remaining(work));
  std::fflush(stream_);
}

void Turns::end(const Case& row, const std::string& result) {
  work_done_ += usual_seconds(row);
  work_left_ -= usual_seconds(row);
  if (terminal_) {
    fmt::print(stream_, "{}  {}\x1b[K\n", heading(row), result);
  } else {
    fmt::print(stream_, "{}  {}{}\n", heading(row), result, remaining(0.0));
  }
  std::fflush(stream_);
}

std::string Turns::heading(const Case& row) const {
  const auto total = fmt::format("{}", total_);
  auto text = fmt::format("[{:>{}}/{}] {:<20}  {}  {} x {}  {}", begun_, total.size(), total,
                          row.program, row.recipe, row.world, row.threads, row.precision);
  if (row.width != 1) text += fmt::format("  width {}", row.width);
  if (row.micro_batch > 0) text += fmt::format("  micro-batch {}", row.micro_batch);
  if (row.epochs > 0) text += fmt::format("  {} epochs", row.epochs);
  if (row.seed > 0) text += fmt::format("  seed {}", row.seed);
  if (!row.variant.empty()) text += "  " + row.variant;
  return text;
}

// `work` are the usual seconds of what the row under way has done. The usual speed counts as much
// as kTrusted seconds of measurement.
std::string Turns::remaining(double work) const {
  constexpr double kTrusted = 20.0;
  constexpr double kMinute = 60.0;
  constexpr double kTen = 10.0;
  const double slowness = (clock_() - started_ + kTrusted) / (work_done_ + work + kTrusted);
  const double seconds = (work_left_ - work) * slowness;
  if (seconds < 0.5) return "";
  if (seconds < 1.5 * kMinute) {
    return fmt::format("  about {:.0f} s left", std::ceil(seconds / kTen) * kTen);
  }
  return fmt::format("  about {:.0f} min left", seconds / kMinute);
}

}  // namespace ladder::bench
