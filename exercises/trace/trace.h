// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "exercises/exercise.h"

namespace ladder::exercises {

// A kernel of a recorded step; times in microseconds since the step began.
struct Kernel {
  std::string name;
  int stream = 0;
  double launched = 0;  // the host's call ended
  double begin = 0;     // not before `launched`
  double end = 0;
};

struct Trace {
  std::vector<Kernel> kernels;  // in the order of their launches
  double end = 0;               // of the step
};

struct TraceReading {
  // The microseconds in which at least one kernel runs.
  double (*busy_us)(const Trace& trace);

  // The microseconds in which none runs, as the next one is not launched yet.
  double (*waits_for_host_us)(const Trace& trace);

  // The name whose kernels take the most time together.
  std::string (*largest)(const Trace& trace);

  // By how much the step is shorter in a graph.
  double (*graph_saves_us)(const Trace& trace, double launch_us, double gap_us);
};

}  // namespace ladder::exercises
