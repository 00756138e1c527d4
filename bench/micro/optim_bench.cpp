// SPDX-License-Identifier: Apache-2.0
// One step of each optimizer over the 1,199,882 parameters of BasicNet.
//   build/bin/micro --benchmark_filter=optim
#include <benchmark/benchmark.h>
#include <torch/optim/adamw.h>

#include <memory>
#include <vector>

#include "ladder/nn/model.h"
#include "ladder/optim/adagrad.h"
#include "ladder/optim/adam.h"
#include "ladder/optim/clip_grad.h"
#include "ladder/optim/rmsprop.h"
#include "ladder/optim/sgd.h"
#include "mnist/networks.h"

namespace ladder {
namespace {

std::vector<torch::Tensor> parameters_with_gradients() {
  torch::manual_seed(42);
  auto parameters = mnist::make_basic_net()->parameters();
  for (auto& parameter : parameters) {
    parameter.mutable_grad() = torch::randn_like(parameter.detach()) * 1e-3;
  }
  return parameters;
}

template <typename Optimizer, typename Options>
void optim_step(benchmark::State& state, const Options& options) {
  Optimizer optimizer(parameters_with_gradients(), options);
  optimizer.step();  // makes the state
  for (auto _ : state) optimizer.step();
}

void optim_adamw(benchmark::State& state) { optim_step<AdamW>(state, AdamWOptions{}); }
void optim_adam(benchmark::State& state) { optim_step<Adam>(state, AdamOptions{}); }
void optim_adagrad(benchmark::State& state) { optim_step<Adagrad>(state, AdagradOptions{}); }
void optim_rmsprop(benchmark::State& state) { optim_step<RMSprop>(state, RMSpropOptions{}); }
void optim_sgd(benchmark::State& state) { optim_step<SGD>(state, SgdOptions{}); }
void optim_sgd_momentum(benchmark::State& state) {
  optim_step<SGD>(state, SgdOptions{.momentum = 0.9});
}

// LibTorch's own, parameter by parameter: what the fused ones are measured against.
void optim_libtorch_adamw(benchmark::State& state) {
  optim_step<torch::optim::AdamW>(state, torch::optim::AdamWOptions{});
}

void optim_clip_grad_norm(benchmark::State& state) {
  const auto parameters = parameters_with_gradients();
  for (auto _ : state) benchmark::DoNotOptimize(clip_grad_norm_(parameters, 1.0));
}

BENCHMARK(optim_adamw)->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK(optim_adam)->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK(optim_adagrad)->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK(optim_rmsprop)->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK(optim_sgd)->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK(optim_sgd_momentum)->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK(optim_libtorch_adamw)->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK(optim_clip_grad_norm)->Unit(benchmark::kMicrosecond)->UseRealTime();

}  // namespace
}  // namespace ladder
