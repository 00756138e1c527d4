// SPDX-License-Identifier: Apache-2.0
// The data path: from bytes in memory to a normalised float batch.
//   build/bin/micro --benchmark_filter=data
#include <benchmark/benchmark.h>

#include <memory>

#include "ladder/data/data_loader.h"
#include "ladder/data/random_shift.h"
#include "mnist/dataset.h"

namespace ladder {
namespace {

const std::shared_ptr<const mnist::Dataset>& training_set() {
  static const auto dataset = std::make_shared<const mnist::Dataset>(
      LADDER_SOURCE_DIR "/data/mnist", mnist::Split::kTrain,
      mnist::DatasetOptions{.normalization = mnist::kMnistNormalization});
  return dataset;
}

// One batch of random samples: gather and normalise in one pass, on one thread.
void data_gather(benchmark::State& state) {
  const auto order = RandomSampler(training_set()->size(), 42).order(0);
  const auto batch_size = static_cast<std::size_t>(state.range(0));
  std::size_t first = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(training_set()->get_batch({order.data() + first, batch_size}));
    first = (first + batch_size) % (order.size() - batch_size);
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(data_gather)->Arg(32)->Arg(64);

// A whole epoch through the loader: order, batches, positions. Batches that nobody computes with
// show what workers cost, not what they save.
void data_loader_epoch(benchmark::State& state, int num_workers, bool shift) {
  const auto transform =
      shift ? std::make_shared<RandomShift>(RandomShiftOptions{.seed = 42}) : nullptr;
  const DataLoader loader(
      training_set(),
      {.batch_size = 64, .shuffle = true, .num_workers = num_workers, .transform = transform});
  for (auto _ : state) {
    for (const Batch& batch : loader)
      benchmark::DoNotOptimize(batch.inputs.only().const_data_ptr());
  }
  state.SetItemsProcessed(state.iterations() * training_set()->size());
}
BENCHMARK_CAPTURE(data_loader_epoch, workers_0, 0, false)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(data_loader_epoch, workers_2, 2, false)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(data_loader_epoch, shifted, 0, true)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace ladder
