// SPDX-License-Identifier: Apache-2.0
// Exercise 20: what a recorded step of a GPU shows.
#include "exercises/trace/trace.h"

#include <algorithm>
#include <map>

namespace {

using namespace ladder::exercises;

// The microseconds in which at least one kernel runs.
double busy_us(const Trace& trace) {
  // solution
  auto kernels = trace.kernels;
  std::ranges::sort(kernels, {}, &Kernel::begin);
  double busy = 0;
  double end = 0;  // of all kernels so far
  for (const auto& kernel : kernels) {
    busy += std::max(0.0, kernel.end - std::max(kernel.begin, end));
    end = std::max(end, kernel.end);
  }
  return busy;
  // end
}

// The microseconds in which none runs, as the next one is not launched yet.
double waits_for_host_us(const Trace& trace) {
  // solution
  auto in_order = trace.kernels;
  std::ranges::sort(in_order, {}, &Kernel::begin);
  double waits = 0;
  double until = 0;  // the last end so far
  for (const auto& kernel : in_order) {
    waits += std::max(0.0, kernel.launched - until);
    until = std::max(until, kernel.end);
  }
  return waits;
  // end
}

// The name whose kernels take the most time together.
std::string largest(const Trace& trace) {
  // solution
  std::map<std::string, double> times;
  for (const auto& kernel : trace.kernels) times[kernel.name] += kernel.end - kernel.begin;
  return std::ranges::max_element(times, {}, [](const auto& one) { return one.second; })->first;
  // end
}

// By how much the step is shorter in a graph.
double graph_saves_us(const Trace& trace, double launch_us, double gap_us) {
  // solution
  std::map<int, double> streams;
  for (const auto& kernel : trace.kernels) {
    streams[kernel.stream] += gap_us + kernel.end - kernel.begin;
  }
  double slowest = 0;
  for (const auto& [stream, time] : streams) slowest = std::max(slowest, time);
  return trace.end - launch_us - slowest;
  // end
}

const Submission submission(TraceReading{busy_us, waits_for_host_us, largest, graph_saves_us});

}  // namespace
