// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "ladder/comm/c10d_group.h"
#include "ladder/comm/init_process_group.h"
#include "traps/ranks.h"
#include "traps/report.h"

namespace ladder::traps {
namespace {

constexpr std::int64_t kElements = 128 * 9'216;  // of the weights of BasicNet's fc1

// Near 1 on rank 0 and near 3 on rank 1, with an average of 2.
torch::Tensor gradient_of(int rank) {
  const auto more = torch::arange(kElements).remainder(4) * 0.25F;
  return rank == 0 ? 1.0F + more : 3.0F - more;
}

// Whose gradient is that of the rank.
struct Weights : torch::nn::Module {
  Weights() { weight = register_parameter("weight", torch::zeros({kElements})); }
  torch::Tensor weight;
};

// Of a tensor that should be the average, 2.
std::string wrong_elements(const torch::Tensor& averaged) {
  const auto wrong = (averaged != 2.0).sum().item<std::int64_t>();
  return fmt::format("{} of {}", wrong, averaged.numel());
}

// One of the orders that can occur if the division does not wait: rank 1 joins when rank 0 has
// divided, and divides when the sum is there. If both divide before it, the average is right.
torch::Tensor averaged(const ProcessGroup& group, bool waits) {
  using std::chrono::seconds;
  Weights model;
  Recorder recorder(waits ? "guard" : "mistake", model);
  const auto loss = (model.weight * gradient_of(group.rank())).sum();
  loss.backward();
  const auto gradient = model.weight.grad();
  const auto barrier = [&] {
    group.monitored_barrier(seconds(15));
  };  // of the store: no collective
  if (group.rank() == 1) barrier();
  std::vector<torch::Tensor> tensors = {gradient};
  const auto work = c10d_group(group)->allreduce(tensors);
  const bool divides_early = !waits && group.rank() == 0;
  if (divides_early) gradient.div_(2);
  if (group.rank() == 0) barrier();
  work->wait();
  if (!divides_early) gradient.div_(2);
  recorder.step({.positions = torch::zeros({1}, torch::kInt64)}, loss.detach(), model);
  return gradient;
}

}  // namespace

void divide_before_wait() {
  on_processes(2, [] {
    const auto group = init_process_group(
        {.backend = "gloo", .timeout = std::chrono::seconds(20), .device = "cpu"});
    const auto wrong = averaged(group, /*waits=*/false);
    const auto right = averaged(group, /*waits=*/true);
    auto by_library = gradient_of(group.rank());
    group.all_reduce(by_library);
    by_library /= 2;
    require((wrong != 2.0).all().item<bool>(), "the order made no difference");
    require(torch::equal(right, by_library), "the sums differ");
    if (group.rank() != 0) return;
    mistake("elements wrong", wrong_elements(wrong));
    guard("elements wrong with wait()", wrong_elements(right));
    guard("elements wrong, all_reduce", wrong_elements(by_library));
  });
}

}  // namespace ladder::traps
