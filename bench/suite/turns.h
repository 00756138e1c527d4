// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <functional>
#include <string>

#include "bench/suite/cases.h"
#include "ladder/core/clock.h"

namespace ladder::bench {

// The progress of the suite. Each row that ends adds a line with its result and the remaining time:
//
//     [ 1/15] stage0_single_gpu     basicnet  1 x 2  fp32   98.39 %   17.6 s  about 2 min left
//
// On a terminal the remaining time is on one more line, for the row under way, which show()
// redraws. It ends with a carriage return, so that any other output overwrites it. The remaining
// time comes from the usual lengths of the rows on two cores and, as rows end, from the speed of
// this machine.
class Turns {
 public:
  Turns(std::FILE* stream, bool terminal, std::function<double()> clock = steady_seconds);

  // Call this for all rows first, then begin(), show() at any time, and end() for each run.
  void announce(const Case& row, int runs);
  void begin(const Case& row);
  void show(const Case& row, const std::string& steps);  // such as " 188/938"
  void end(const Case& row, const std::string& result);

 private:
  std::string heading(const Case& row) const;
  std::string remaining(double work) const;

  std::FILE* stream_;  // not owned
  bool terminal_;
  std::function<double()> clock_;
  double started_;
  double row_began_ = 0.0;
  int total_ = 0;
  int begun_ = 0;
  double work_done_ = 0.0;  // usual seconds
  double work_left_ = 0.0;
};

}  // namespace ladder::bench
