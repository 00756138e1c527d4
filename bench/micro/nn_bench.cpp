// SPDX-License-Identifier: Apache-2.0
// Parts of a training step of BasicNet.
//   build/bin/micro --benchmark_filter=dropout
#include <benchmark/benchmark.h>

#include "ladder/nn/dropout.h"
#include "ladder/nn/memory_format.h"

namespace ladder {
namespace {

// The mask of BasicNet's first dropout, in both maths and both layouts.
void dropout_forward(benchmark::State& state, Math math, bool channels_last) {
  auto input = torch::randn({64, 64, 12, 12});
  if (channels_last) input = to_channels_last(input);
  const Dropout dropout({.p = 0.25, .layer = 1, .math = math});
  const RandomScope random({.seed = 42, .epoch = 0, .positions = torch::arange(64)});
  for (auto _ : state) benchmark::DoNotOptimize(dropout.forward(input));
}
BENCHMARK_CAPTURE(dropout_forward, reference, Math::kReference, false)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(dropout_forward, counter_nchw, Math::kFast, false)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(dropout_forward, counter_channels_last, Math::kFast, true)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace ladder
