// SPDX-License-Identifier: Apache-2.0
// What ranks cost each other: collectives by size, and DistributedDataParallel around a training
// step. Two ranks are two processes of this machine, with one thread each, that talk by Gloo or in
// shared memory.
//   build/bin/micro --benchmark_filter=comm
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/micro/training_step.h"
#include "bench/micro/two_ranks.h"

namespace ladder {
namespace {

constexpr std::int64_t kBasicNetGradient = 4'799'528;  // bytes

void all_reduce(const ProcessGroup& group, std::int64_t bytes, const TwoRanks::Repeat& repeat) {
  auto tensor = torch::zeros({bytes / 4});
  repeat([&] { group.all_reduce(tensor); });
}

// A step of BasicNet, three times: rank 0 works alone; both work, each for itself, and share the
// machine; both average their gradients. Each rank has `batch_size` samples of its own.
void step_alone(const ProcessGroup& group, std::int64_t batch_size,
                const TwoRanks::Repeat& repeat) {
  if (group.rank() != 0) return;
  TrainingStep step({.batch_size = batch_size});
  repeat([&] { step.run(); });
}

void step_side_by_side(const ProcessGroup& /*group*/, std::int64_t batch_size,
                       const TwoRanks::Repeat& repeat) {
  TrainingStep step({.batch_size = batch_size});
  repeat([&] { step.run(); });
}

void step_ddp(const ProcessGroup& group, std::int64_t batch_size, const TwoRanks::Repeat& repeat) {
  TrainingStep step({.batch_size = batch_size, .group = group});
  repeat([&] { step.run(); });
}

double seconds_of(TrainingStep& step) {
  const auto start = std::chrono::steady_clock::now();
  step.run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// What DistributedDataParallel adds to a step where there is nobody to talk to, on all threads.
// Each step has a partner without it, as the speed of a machine changes by more than that within
// seconds. The row's time is that of the steps with it, the counters are medians over the pairs.
void comm_ddp_overhead(benchmark::State& state, const std::string& recipe) {
  TrainingStep plain({.recipe = recipe, .batch_size = state.range(0)});
  TrainingStep wrapped(
      {.recipe = recipe, .batch_size = state.range(0), .group = ProcessGroup::single()});
  for (auto* step : {&plain, &wrapped, &plain, &wrapped}) step->run();
  std::vector<double> differences;
  std::vector<double> ratios;
  for (auto _ : state) {
    const bool plain_first = ratios.size() % 2 == 0;
    double without = plain_first ? seconds_of(plain) : 0.0;
    const double with = seconds_of(wrapped);
    if (!plain_first) without = seconds_of(plain);
    differences.push_back(with - without);
    ratios.push_back(with / without);
    state.SetIterationTime(with);
  }
  state.counters["added_us"] = median(differences) * 1e6;
  state.counters["added_percent"] = (median(ratios) - 1.0) * 100.0;
}
BENCHMARK_CAPTURE(comm_ddp_overhead, basicnet, "basicnet")
    ->Arg(1)
    ->Arg(64)
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime();
BENCHMARK_CAPTURE(comm_ddp_overhead, convnet, "convnet")
    ->Arg(1)
    ->Arg(32)
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime();

}  // namespace

void register_comm_benchmarks(TwoRanks& ranks) {
  using enum TwoRanks::Backend;
  const auto on_two_ranks = [&](const std::string& name, TwoRanks::Body body,
                                TwoRanks::Backend backend = kGloo) {
    const auto measure = [&ranks, body, backend](benchmark::State& state) {
      ranks.measure(state, body, backend);
    };
    return benchmark::RegisterBenchmark(name.c_str(), measure)->UseRealTime();
  };
  for (const auto backend : {kGloo, kSharedMemory}) {
    const std::string name = backend == kGloo ? "gloo" : "shm";
    on_two_ranks("comm_all_reduce/" + name, all_reduce, backend)
        ->Arg(4)
        ->Arg(64 * 1024)
        ->Arg(kBasicNetGradient)
        ->Unit(benchmark::kMicrosecond);
    on_two_ranks("comm_step/ddp_" + name, step_ddp, backend)
        ->Arg(32)
        ->Arg(64)
        ->Unit(benchmark::kMillisecond);
  }
  for (const std::int64_t batch_size : {32, 64}) {
    on_two_ranks("comm_step/alone", step_alone)->Arg(batch_size)->Unit(benchmark::kMillisecond);
    on_two_ranks("comm_step/side_by_side", step_side_by_side)
        ->Arg(batch_size)
        ->Unit(benchmark::kMillisecond);
  }
}

}  // namespace ladder
