// SPDX-License-Identifier: Apache-2.0
// Times single parts of the library, set up as every program of the project sets itself up.
//   build/bin/micro                                       all of them
//   OMP_NUM_THREADS=1 build/bin/micro --benchmark_filter=data
//
// Rank 0 measures. Rank 1 sleeps, but for the rows that take two (see two_ranks.h).
#include <benchmark/benchmark.h>

#include <string>

#include "bench/micro/two_ranks.h"
#include "ladder/core/device.h"
#include "ladder/core/error.h"
#include "ladder/launch/exit_status.h"
#include "ladder/launch/spawn.h"

namespace {

void measure(ladder::TwoRanks& ranks) {
  const auto choice = ladder::prepare_process({});
  benchmark::AddCustomContext("threads", std::to_string(choice.threads));
  ladder::register_comm_benchmarks(ranks);
  const auto count = benchmark::RunSpecifiedBenchmarks();
  ranks.finish();
  if (count == 0) {
    throw ladder::UsageError::conflict("--benchmark_filter", "matches no row",
                                       "--benchmark_list_tests shows all");
  }
}

void take_part(ladder::TwoRanks& ranks) {
  ladder::prepare_process({.requested = 1});
  ranks.follow();
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  return ladder::call_and_report([] {
    ladder::TwoRanks ranks;
    ladder::spawn([&](int rank) { rank == 0 ? measure(ranks) : take_part(ranks); }, {.nprocs = 2});
  });
}
