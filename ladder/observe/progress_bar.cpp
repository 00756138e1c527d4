// SPDX-License-Identifier: Apache-2.0
#include "ladder/observe/progress_bar.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "ladder/core/log.h"

namespace ladder {
namespace {

constexpr std::string_view kEraseRest = "\x1b[K";
constexpr double kSecondsBetweenDraws = 0.1;

// "[===>    ]"
std::string bar(std::int64_t done, std::int64_t total) {
  constexpr std::int64_t kWidth = 16;
  const auto filled = std::clamp<std::int64_t>(done * kWidth / total, 0, kWidth);
  const std::string text = std::string(static_cast<std::size_t>(filled), '=') + '>';
  return fmt::format("[{:<{}.{}}]", text, kWidth, kWidth);
}

std::string duration(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  const auto hours = whole / 3600;
  const auto minutes = whole / 60 % 60;
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60);
  return fmt::format("{}:{:02}", minutes, whole % 60);
}

}  // namespace

ProgressBar::ProgressBar(ProgressOptions options) : options_(std::move(options)) {
  options_.enabled = options_.enabled && options_.total > 0;
  started_ = options_.clock();
  drawn_at_ = started_ - kSecondsBetweenDraws;
}

ProgressBar::~ProgressBar() { end_line(); }

void ProgressBar::update(std::int64_t steps_done, std::int64_t samples_done, double loss) {
  if (!options_.enabled) return;
  latest_ = {steps_done, samples_done, loss};
  if (options_.terminal) {
    const double now = options_.clock();
    if (now - drawn_at_ < kSecondsBetweenDraws && steps_done != options_.total) return;
    drawn_at_ = now;
  } else {
    const std::int64_t tenths = steps_done * 10 / options_.total;
    if (tenths <= tenths_shown_) return;
    tenths_shown_ = tenths;
  }
  draw();
}

void ProgressBar::finish() {
  if (line_open_) draw();
  end_line();
  options_.enabled = false;
}

void ProgressBar::clear() {
  if (line_open_) print_or_drop(options_.stream, fmt::format("\r{}", kEraseRest));
  line_open_ = false;
  drawn_at_ = options_.clock() - kSecondsBetweenDraws;
}

void ProgressBar::draw() {
  std::string figures = fmt::format("{}/{}", latest_.steps, options_.total);
  if (!std::isnan(latest_.loss)) figures += fmt::format("  loss {:.4f}", latest_.loss);
  const double elapsed = options_.clock() - started_;
  if (elapsed > 0.0 && latest_.steps > 0) {
    const double seconds_per_step = elapsed / static_cast<double>(latest_.steps);
    const auto left = std::max<std::int64_t>(0, options_.total - latest_.steps);
    figures +=
        fmt::format("  {:.0f} samples/s  eta {}", static_cast<double>(latest_.samples) / elapsed,
                    duration(static_cast<double>(left) * seconds_per_step));
  }
  if (options_.terminal) {
    print_or_drop(options_.stream,
                  fmt::format("\r{} {} {}{}", options_.label, bar(latest_.steps, options_.total),
                              figures, kEraseRest));
    line_open_ = true;
  } else {
    print_or_drop(options_.stream, fmt::format("{} {}\n", options_.label, figures));
  }
}

void ProgressBar::end_line() {
  if (line_open_) print_or_drop(options_.stream, "\n");
  line_open_ = false;
}

}  // namespace ladder
