// SPDX-License-Identifier: Apache-2.0
// Saving BasicNet's weights as one file, and a checkpoint that a run can go on from. Both return
// when the bytes are on disk, so that a disk is measured as well. It is the one of the folder that
// TMPDIR names, /tmp by default; what is written there is removed.
//   TMPDIR=/some/disk build/bin/micro --benchmark_filter=checkpoint
#include <benchmark/benchmark.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "ladder/armour/checkpoint_folder.h"
#include "ladder/checkpoint/random_state.h"
#include "ladder/checkpoint/safetensors.h"
#include "ladder/nn/model.h"
#include "ladder/optim/adam.h"
#include "ladder/optim/fused_optimizer.h"
#include "mnist/networks.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

std::int64_t bytes_in(const std::string& path) {
  return static_cast<std::int64_t>(std::filesystem::file_size(path));
}

void checkpoint_save_model(benchmark::State& state) {
  const TemporaryFolder folder;
  const auto path = folder.file("model.safetensors");
  const auto model = mnist::make_basic_net();
  for (auto _ : state) save_model(*model, path);
  state.SetBytesProcessed(state.iterations() * bytes_in(path));
}
BENCHMARK(checkpoint_save_model)->Unit(benchmark::kMillisecond)->UseRealTime();

void checkpoint_load_model(benchmark::State& state) {
  const TemporaryFolder folder;
  const auto path = folder.file("model.safetensors");
  const auto model = mnist::make_basic_net();
  save_model(*model, path);
  for (auto _ : state) load_model(*model, path);
  state.SetBytesProcessed(state.iterations() * bytes_in(path));
}
BENCHMARK(checkpoint_load_model)->Unit(benchmark::kMillisecond)->UseRealTime();

// A network with so many megabytes of weights.
class Weights : public torch::nn::Module {
 public:
  explicit Weights(std::int64_t megabytes) {
    constexpr std::int64_t kLayers = 5;
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      register_parameter("weight" + std::to_string(layer),
                         torch::rand({megabytes * 250'000 / kLayers}));
    }
  }
};

// Weights, the optimizer's state of twice their size and random numbers, hashed, in a folder that
// replaces the one before.
void checkpoint_folder(benchmark::State& state) {
  const TemporaryFolder folder;
  const auto path = folder.file("checkpoint_0");
  const Weights model(state.range(0));
  AdamW optimizer(model.parameters());
  for (auto& parameter : model.parameters()) {
    parameter.mutable_grad() = torch::ones_like(parameter.detach());
  }
  optimizer.step();
  for (auto _ : state) {
    CheckpointWriter writer(path);
    const auto save = [&](const char* name, const SafetensorsFile& file) {
      writer.write(name, [&](const WriteBytes& write) { write_safetensors(file, write); });
    };
    save("model.safetensors", model_file(model));
    save("optimizer.safetensors", to_safetensors(optimizer.state_dict(model)));
    save("rng_0.safetensors", {random_state(torch::kCPU), {}});
    writer.commit();
  }
  state.SetBytesProcessed(state.iterations() * (bytes_in(path + "/model.safetensors") +
                                                bytes_in(path + "/optimizer.safetensors")));
}
BENCHMARK(checkpoint_folder)
    ->ArgName("megabytes")
    ->Arg(5)
    ->Arg(500)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace ladder
