// SPDX-License-Identifier: Apache-2.0
// A network with two inputs, trained by two processes. Shown and explained in docs/library.md.
#include <ladder/comm/init_process_group.h>
#include <ladder/core/device.h>
#include <ladder/core/exit_status.h>
#include <ladder/launch/spawn.h>
#include <ladder/optim/sgd.h>
#include <ladder/parallel/gradient_reducer.h>
#include <ladder/parallel/replica_check.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <iostream>

namespace {

constexpr std::uint64_t kSteps = 401;
constexpr int kBatch = 9;  // pairs of all ranks together: here 5 and 4

// How well does an image fit a text? Each becomes a vector; the answer is their product.
struct Matcher : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& images, const torch::Tensor& texts) {
    return (image->forward(images) * text->forward(texts)).sum(1);
  }

  torch::nn::Linear image = register_module("image", torch::nn::Linear(8, 16));
  torch::nn::Linear text = register_module("text", torch::nn::Linear(4, 16));
};

struct Pairs {
  torch::Tensor images;
  torch::Tensor texts;
  torch::Tensor fit;  // what the network is to learn: do their first numbers agree?
};

// Batch `step` of the run, of which this rank takes its slice.
Pairs slice_of_batch(std::uint64_t step, const ladder::ProcessGroup& group) {
  torch::manual_seed(1000 + step);
  const auto mine = [&](const torch::Tensor& whole) {
    return whole.tensor_split(group.world_size())[static_cast<std::size_t>(group.rank())];
  };
  const auto images = torch::randn({kBatch, 8});
  const auto texts = torch::randn({kBatch, 4});
  return {mine(images), mine(texts), mine(images.select(1, 0) * texts.select(1, 0))};
}

// Sum over this rank's pairs × ranks ÷ pairs of all ranks: averaged over the ranks, the gradient is
// that of the whole batch, although the slices differ in size.
torch::Tensor loss_of(const torch::Tensor& score, const Pairs& pairs, int world_size) {
  return (score - pairs.fit).square().sum() * world_size / kBatch;
}

// The loss of the whole batch, on rank 0. All ranks must call it: all_reduce waits for all.
void report(std::uint64_t step, const torch::Tensor& loss, const ladder::ProcessGroup& group) {
  auto mean = loss.detach() / group.world_size();
  group.all_reduce(mean);
  if (group.rank() != 0) return;
  std::cout << "step " << step << ", loss " << mean.item<double>() << std::endl;
}

void train() {
  const auto group = ladder::init_process_group({.device = "cpu"});
  ladder::prepare_process({.local_world_size = group.local_world_size()});
  torch::manual_seed(42);
  Matcher model;
  ladder::GradientReducer reducer(model, group);
  ladder::SGD optimizer(model.parameters(), {.lr = 0.01});
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    const Pairs pairs = slice_of_batch(step, group);
    const auto score = reducer.forward([&] { return model.forward(pairs.images, pairs.texts); });
    const auto loss = loss_of(score, pairs, group.world_size());
    loss.backward();  // the gradients are averaged when it returns
    optimizer.step();
    optimizer.zero_grad();
    if (step % 100 == 0) report(step, loss, group);
  }
  ladder::require_equal_replicas(model, group);
}

}  // namespace

int main() {
  return ladder::call_and_report([] { ladder::spawn([](int /*rank*/) { train(); }); });
}
