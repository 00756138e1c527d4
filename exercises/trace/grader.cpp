// SPDX-License-Identifier: Apache-2.0
#include "exercises/trace/trace.h"

#include <fmt/format.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "exercises/grader/grader.h"

namespace ladder::exercises::trace {
namespace {

constexpr int kCompute = 7;
constexpr int kCommunication = 20;

bool close(double a, double b) { return std::abs(a - b) <= 1e-6 * std::abs(b) + 1e-9; }

double fresh_factor() { return 1 + 0.001 * static_cast<double>(fresh_seed() % 100); }

// Adds kernels as a host launches them and the streams run them.
class Recording {
 public:
  explicit Recording(double between_launches) : between_(between_launches * fresh_factor()) {}

  // `after`: an end on another stream that the kernel waits for.
  double add(const std::string& name, double length, int stream = kCompute, double after = 0) {
    launched_ += between_;
    auto& free = free_[stream];
    const double begin = std::max({launched_ + kLatency, free, after});
    free = begin + length * fresh_factor();
    trace_.kernels.push_back({name, stream, launched_, begin, free});
    return free;
  }
  Trace ended() {
    for (const auto& kernel : trace_.kernels) trace_.end = std::max(trace_.end, kernel.end + 12);
    return trace_;
  }

 private:
  static constexpr double kLatency = 4;

  double between_;
  double launched_ = 0;
  std::map<int, double> free_;
  Trace trace_;
};

// A step of stage 0 on an H200: microseconds of each kind of kernel. Of the 63 launches, those of
// small kernels are divided among the kinds by estimate.
Trace recorded_step() {
  struct Row {
    const char* name;
    int launches;
    double us;
  };
  constexpr Row kRows[] = {
      {"copies and fills", 26, 38.5},  {"conv1 forward", 1, 10},     {"conv2 forward", 1, 16},
      {"bias, ReLU, dropout", 20, 70}, {"max pool", 2, 30},          {"dropout masks", 2, 12},
      {"fc1 forward", 1, 52},          {"fc1 backward", 2, 19},      {"conv2 backward", 2, 60},
      {"conv1 backward", 1, 40},       {"sums of gradients", 4, 29}, {"_fused_adamw_", 1, 71.5}};
  Recording recording(26);
  for (const auto& row : kRows) {
    for (int i = 0; i < row.launches; ++i) recording.add(row.name, row.us / row.launches);
  }
  return recording.ended();
}

// The host is far ahead.
Trace limited_by_the_gpu() {
  Recording recording(3);
  for (int i = 0; i < 12; ++i) recording.add(i % 3 == 0 ? "matrix product" : "convolution", 40);
  recording.add("_fused_adamw_", 95);
  return recording.ended();
}

// An all-reduce begins while backward goes on; the optimizer, launched long before, waits for it.
Trace with_all_reduce(double between_launches) {
  Recording recording(between_launches);
  double sums = 0;
  for (int i = 0; i < 9; ++i) {
    const double gradient = recording.add("backward", 22);
    if (i % 3 == 2) sums = recording.add("all_reduce", 62, kCommunication, gradient + 2);
  }
  recording.add("_fused_adamw_", 31, kCompute, sums + 6);
  return recording.ended();
}

std::vector<std::pair<std::string, Trace>> traces() {
  return {{"two streams, a slow host", with_all_reduce(30)},
          {"two streams, a fast host", with_all_reduce(4)},
          {"the recorded step", recorded_step()},
          {"a step that the GPU limits", limited_by_the_gpu()}};
}

std::vector<Kernel> by_begin(const Trace& trace) {
  auto kernels = trace.kernels;
  std::ranges::stable_sort(kernels, {}, &Kernel::begin);
  return kernels;
}

struct Times {
  double busy = 0;
  double idle = 0;   // before the last kernel
  double waits = 0;  // for the host
  double end = 0;    // of the last kernel
};

Times times_of(const std::vector<Kernel>& kernels) {
  Times times;
  for (const auto& kernel : kernels) {
    times.busy += std::max(0.0, kernel.end - std::max(kernel.begin, times.end));
    times.idle += std::max(0.0, kernel.begin - times.end);
    times.waits += std::max(0.0, kernel.launched - times.end);
    times.end = std::max(times.end, kernel.end);
  }
  return times;
}

double sum_of(const Trace& trace) {
  double sum = 0;
  for (const auto& kernel : trace.kernels) sum += kernel.end - kernel.begin;
  return sum;
}

std::string meaning_of_busy(double got, const Trace& trace) {
  const auto kernels = by_begin(trace);
  const auto times = times_of(kernels);
  if (close(got, sum_of(trace))) {
    return "a microsecond in which two kernels run counts once, not twice";
  }
  if (close(got, times.end - kernels.front().begin) || close(got, times.end)) {
    return "the times between the kernels are counted too";
  }
  if (close(got, trace.end)) return "the whole step: the GPU computes in a part of it";
  double compute = 0;
  for (const auto& kernel : kernels) {
    if (kernel.stream == kCompute) compute += kernel.end - kernel.begin;
  }
  if (close(got, compute)) return "the kernels of one stream alone";
  if (close(got, times_of(trace.kernels).busy)) {
    return "the kernels are in the order of their launches: sort them by begin";
  }
  return "the union of the kernels' times: go through them by begin, and keep the latest end";
}

std::string meaning_of_waits(double got, const Trace& trace) {
  const auto kernels = by_begin(trace);
  const auto times = times_of(kernels);
  if (close(got, times.idle)) {
    return "all the time without a kernel: behind its launch, a kernel waits for another stream, "
           "or "
           "for the GPU to begin";
  }
  if (close(got, trace.end - times.busy)) {
    return "all the time without a kernel, also after the last one";
  }
  if (close(got, times.waits + trace.end - times.end)) {
    return "the time after the last kernel is for no launch";
  }
  if (close(got, times.waits - kernels.front().launched)) {
    return "the time before the first kernel is missing: the host launches that too";
  }
  double latencies = 0;
  double neighbours = 0;
  double last_end = 0;
  for (const auto& kernel : kernels) {
    latencies += kernel.begin - kernel.launched;
    neighbours += std::max(0.0, kernel.launched - std::exchange(last_end, kernel.end));
  }
  if (close(got, latencies)) {
    return "from launch to begin a kernel waits, and the GPU does not: it may run others";
  }
  if (close(got, neighbours)) {
    return "a kernel of another stream still runs: compare with the latest end so far, not with "
           "that "
           "of the kernel before";
  }
  if (close(got, times_of(trace.kernels).waits)) {
    return "the kernels are in the order of their launches: sort them by begin";
  }
  return "of each time without a kernel, the part before the launch of the next one";
}

std::string meaning_of_name(const std::string& got, const Trace& trace) {
  const auto& kernels = trace.kernels;
  const auto longest = std::ranges::max_element(
      kernels, {}, [](const auto& kernel) { return kernel.end - kernel.begin; });
  if (got == longest->name) return "the longest single kernel: add up those with one name";
  std::map<std::string, int> launches;
  for (const auto& kernel : kernels) ++launches[kernel.name];
  const auto most = std::ranges::max_element(launches, {}, [](auto& one) { return one.second; });
  return got == most->first ? "the name with the most launches: add up times"
                            : "the sum of the times of each name";
}

std::string meaning_of_saving(double got, const Trace& trace, double launch, double gap) {
  std::map<int, double> streams;
  double all = 0;
  for (const auto& kernel : trace.kernels) {
    const double length = gap + kernel.end - kernel.begin;
    streams[kernel.stream] += length;
    all += length;
  }
  double slowest = 0;
  for (const auto& [stream, time] : streams) slowest = std::max(slowest, time);
  const auto count = static_cast<double>(trace.kernels.size());
  const auto saves = [&](double graph) { return close(got, trace.end - graph); };
  if (close(got, launch + slowest)) return "the step in the graph, and not what it saves";
  if (saves(slowest)) return "the launch of the graph is missing";
  if (saves(launch + all)) return "the streams run side by side: the slowest one counts";
  if (saves(launch * count + slowest)) return "a graph is launched once, not once per kernel";
  if (saves(launch + gap + slowest) || saves(launch + slowest - gap)) {
    return "gap_us comes before each kernel of a stream, also before the first";
  }
  if (saves(launch + times_of(by_begin(trace)).busy)) {
    return "the recorded overlap: in a graph a stream has gaps, and waits for no other";
  }
  double without = 0;
  std::map<int, double> plain;
  for (const auto& kernel : trace.kernels) {
    without = std::max(without, plain[kernel.stream] += kernel.end - kernel.begin);
  }
  if (saves(launch + without)) return "gap_us before each kernel is missing";
  return "the recorded step without one launch and the slowest stream, gaps included";
}

void busy(const TraceReading& yours) {
  for (const auto& [name, trace] : traces()) {
    const double right = times_of(by_begin(trace)).busy;
    const double got = yours.busy_us(trace);
    expect(close(got, right),
           fmt::format("{}: the GPU computes for {:.1f} of {:.1f} us", name, right, trace.end),
           fmt::format("{:.1f} us", got), meaning_of_busy(got, trace));
    result(torch::tensor(got));
  }
}

void waits(const TraceReading& yours) {
  for (const auto& [name, trace] : traces()) {
    const double right = times_of(by_begin(trace)).waits;
    const double got = yours.waits_for_host_us(trace);
    expect(close(got, right),
           fmt::format("{}: the GPU waits for launches for {:.1f} of {:.1f} us", name, right,
                       trace.end),
           fmt::format("{:.1f} us", got), meaning_of_waits(got, trace));
    result(torch::tensor(got));
  }
}

void names(const TraceReading& yours) {
  for (const auto& [name, trace] : traces()) {
    std::map<std::string, double> sums;
    for (const auto& kernel : trace.kernels) sums[kernel.name] += kernel.end - kernel.begin;
    const auto right = std::ranges::max_element(sums, {}, [](auto& one) { return one.second; });
    const auto got = yours.largest(trace);
    expect(got == right->first,
           fmt::format("{}: {}, with {:.1f} us in all", name, right->first, right->second), got,
           meaning_of_name(got, trace));
    result(got);
    result(torch::tensor(right->second));
  }
}

void savings(const TraceReading& yours) {
  for (const auto& [name, trace] : traces()) {
    for (const auto& [launch, gap] : {std::pair{8.0, 1.5}, {21.0, 0.75}}) {
      std::map<int, double> streams;
      double slowest = 0;
      for (const auto& kernel : trace.kernels) {
        slowest = std::max(slowest, streams[kernel.stream] += gap + kernel.end - kernel.begin);
      }
      const double right = trace.end - launch - slowest;
      const double got = yours.graph_saves_us(trace, launch, gap);
      expect(close(got, right),
             fmt::format("{}, launch {} us, gap {} us: {:.1f} of {:.1f} us are saved", name, launch,
                         gap, right, trace.end),
             fmt::format("{:.1f} us", got), meaning_of_saving(got, trace, launch, gap));
      result(torch::tensor(got));
    }
  }
}

void grade(Grader& grader, const TraceReading& yours) {
  using Group = const ProcessGroup&;
  grader.property("the time in which the GPU computes", 1, [&](Group) { busy(yours); });
  grader.property("the time in which it waits for the host", 1, [&](Group) { waits(yours); });
  grader.property("the largest kernels", 1, [&](Group) { names(yours); });
  grader.property("what a graph saves", 1, [&](Group) { savings(yours); });
}

const Graded<TraceReading> graded("trace", grade);

}  // namespace
}  // namespace ladder::exercises::trace
