// SPDX-License-Identifier: Apache-2.0
// Times single parts of the library, set up as every program of the project sets itself up.
//   build/bin/micro                                       all of them
//   OMP_NUM_THREADS=1 build/bin/micro --benchmark_filter=data
#include <benchmark/benchmark.h>

#include "ladder/core/device.h"

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  const auto choice = ladder::prepare_process({});
  benchmark::AddCustomContext("threads", std::to_string(choice.threads));
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
