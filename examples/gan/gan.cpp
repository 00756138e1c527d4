// SPDX-License-Identifier: Apache-2.0
// A GAN with an Accelerator: two networks of torch::nn, two optimizers of torch::optim, two losses.
// The generator learns points on a ring. Resumes from the newest checkpoint in DIR:
//
//     build-examples/gan [DIR]
//     torchrun --no-python --nproc-per-node 2 build-examples/gan [DIR]
#include <fmt/core.h>
#include <ladder/accelerate/accelerator.h>
#include <ladder/data/dataset.h>
#include <ladder/launch/exit_status.h>
#include <ladder/nn/random_scope.h>
#include <ladder/nn/sample_noise.h>
#include <ladder/nn/state_dict.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

namespace {

constexpr std::int64_t kLatent = 4;
constexpr int kEpochs = 30;

torch::nn::Sequential network(std::int64_t inputs, std::int64_t outputs) {
  return torch::nn::Sequential(torch::nn::Linear(inputs, 32), torch::nn::ReLU(),
                               torch::nn::Linear(32, 32), torch::nn::ReLU(),
                               torch::nn::Linear(32, outputs));
}

torch::Tensor points_on_a_ring(std::int64_t count) {
  const auto angle = torch::rand({count}) * 6.2831853;
  return torch::stack({angle.cos(), angle.sin()}, 1);
}

torch::Tensor loss_of(const torch::Tensor& score, double target) {
  return torch::nn::functional::binary_cross_entropy_with_logits(score,
                                                                 torch::full_like(score, target));
}

void train(const std::string& folder) {
  ladder::Accelerator accelerator({.gradient_accumulation = {.num_steps = 2},
                                   .project = {.project_dir = folder},
                                   .quiet = true});
  torch::manual_seed(42);  // the same weights and data on all processes
  const ladder::DataLoader points(std::make_shared<ladder::TensorDataset>(points_on_a_ring(4'096)),
                                  {.batch_size = 64, .shuffle = true});
  auto [g, d, loader] = accelerator.prepare(network(kLatent, 2), network(2, 1), points);
  const auto options = torch::optim::AdamOptions(4e-3).betas({0.5, 0.999});
  auto [optimizer_g, optimizer_d] = accelerator.prepare(
      torch::optim::Adam(g->parameters(), options), torch::optim::Adam(d->parameters(), options));
  if (!folder.empty()) accelerator.load_state("auto");
  while (loader.epoch() < kEpochs) {
    for (const ladder::Batch& batch : loader) {
      const auto accumulation = accelerator.accumulate(*g, *d);
      const ladder::RandomScope random({42, batch.epoch, batch.positions});
      const auto fake = g->forward(ladder::sample_noise({kLatent}).to(accelerator.device()));

      optimizer_d->zero_grad();
      accelerator.backward(loss_of(d->forward(batch.inputs.only()), 1) +
                           loss_of(d->forward(fake.detach()), 0));
      optimizer_d->step();

      optimizer_g->zero_grad();
      const ladder::FreezeGuard frozen(*d);  // the loss of G leaves no gradients in D
      accelerator.backward(loss_of(d->forward(fake), 1));
      optimizer_g->step();
    }
    if (!folder.empty()) accelerator.save_state();
  }
  const torch::NoGradGuard no_grad;
  const auto radius =
      g->forward(torch::randn({1'000, kLatent}).to(accelerator.device())).norm(2, 1);
  accelerator.print(fmt::format("mean radius {:.2f}", radius.mean().item<double>()));
  accelerator.print(
      fmt::format("weights_sha256 {}", ladder::weights_sha256(ladder::state_dict(*g))));
}

}  // namespace

int main(int argc, char** argv) {
  return ladder::call_and_report([&] { train(argc > 1 ? argv[1] : ""); });
}
