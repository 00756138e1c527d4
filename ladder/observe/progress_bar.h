// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>

#include "ladder/core/clock.h"

namespace ladder {

struct ProgressOptions {
  std::int64_t total = 0;                          // steps of the epoch; below 1, nothing is shown
  std::string label;                               // first text of each line: "epoch 1/3"
  bool enabled = true;                             // false on ranks other than 0, and when quiet
  bool terminal = false;                           // redraw one line instead of adding lines
  std::FILE* stream = stderr;                      // not owned
  std::function<double()> clock = steady_seconds;  // replaced in tests
};

// The progress of one epoch.
//
// On a terminal one line is redrawn, at most ten times per second:
//
//     epoch 1/3 [========>       ] 512/938  loss 0.2310  2345 samples/s  eta 0:12
//
// Elsewhere (a log file, CI) each tenth of the steps adds a plain line: ten lines per epoch, or one
// per step if there are fewer than ten.
//
// Speed and remaining time are means since construction. update() costs nanoseconds when it draws
// nothing, so call it after every step. Python's counterpart: tqdm.
//
//     ProgressBar progress({.total = loader.size(), .label = "epoch 1/3",
//                           .terminal = is_terminal(stderr)});
//     for (...) progress.update(++steps, samples, loss);
//     progress.finish();
class ProgressBar {
 public:
  // Starts the clock.
  explicit ProgressBar(ProgressOptions options);
  // Ends an open line, so later output starts on a new one.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Both counts are totals since the start of the epoch. A loss of NaN is unknown and not shown.
  void update(std::int64_t steps_done, std::int64_t samples_done, double loss);

  // Erases the line for other output. The next update draws it again.
  void clear();

  // Draws the last figures and ends the line. Nothing is shown afterwards.
  void finish();

 private:
  struct Figures {
    std::int64_t steps = 0;
    std::int64_t samples = 0;
    double loss = 0.0;
  };

  void draw();
  void end_line();

  ProgressOptions options_;
  double started_ = 0.0;
  double drawn_at_ = 0.0;          // the last draw on a terminal
  std::int64_t tenths_shown_ = 0;  // tenths of the epoch with a line in a file
  bool line_open_ = false;         // the cursor is behind an unfinished line
  Figures latest_;
};

}  // namespace ladder
