// SPDX-License-Identifier: Apache-2.0
// Four LibTorch programs that know nothing of this library, and what each way of training adds to
// them: an LSTM classifier, a VAE, a GAN and a residual network with BatchNorm.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/adam.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "ladder/accelerate/accelerator.h"
#include "ladder/checkpoint/safetensors.h"
#include "ladder/data/tensor_dataset.h"
#include "ladder/nn/random_scope.h"
#include "ladder/nn/sample_noise.h"
#include "ladder/parallel/convert_sync_batchnorm.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "ladder/parallel/replica_check.h"
#include "tests/support/accelerators.h"
#include "tests/support/ranks.h"
#include "tests/support/relative_difference.h"
#include "tests/support/training.h"

namespace ladder {
namespace {

namespace F = torch::nn::functional;

constexpr int kSteps = 10;
constexpr std::int64_t kPortBatch = 16;
constexpr std::int64_t kLatent = 3;
constexpr std::uint64_t kSeed = 5;

// Nothing on one process, this process's part of each batch on several.
torch::Tensor part(const torch::Tensor& batch, const ProcessGroup& group) {
  return batch.chunk(group.world_size())[static_cast<std::size_t>(group.rank())];
}
torch::Tensor rows(const torch::Tensor& all, int step) {
  return all.narrow(0, step * kPortBatch, kPortBatch);
}

struct Data {
  Data(std::vector<std::int64_t> shape, std::uint64_t seed = 7) {
    torch::manual_seed(seed);
    shape.insert(shape.begin(), kSteps * kPortBatch);
    x = torch::randn(shape);
    y = (x.flatten(1).sum(1) > 0).to(torch::kInt64);
  }
  DataLoader loader(std::int64_t batch_size) const {
    return DataLoader(std::make_shared<TensorDataset>(x, y), {.batch_size = batch_size});
  }

  torch::Tensor x;
  torch::Tensor y;
};

// --- The networks ---

struct LstmClassifierImpl : torch::nn::Module {
  LstmClassifierImpl() {
    lstm = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(3, 6).batch_first(true)));
    head = register_module("head", torch::nn::Linear(6, 2));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto states = std::get<0>(lstm->forward(x));
    return head->forward(states.select(1, states.size(1) - 1));
  }
  torch::nn::LSTM lstm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(LstmClassifier);

struct VaeImpl : torch::nn::Module {
  VaeImpl() {
    encoder = register_module("encoder", torch::nn::Linear(8, 2 * kLatent));
    decoder = register_module("decoder", torch::nn::Linear(kLatent, 8));
  }
  struct Output {
    torch::Tensor reconstruction, mean, log_variance;
  };
  Output forward(const torch::Tensor& x, const torch::Tensor& noise) {
    const auto parts = encoder->forward(x).chunk(2, 1);
    const auto z = parts[0] + noise * (parts[1] * 0.5).exp();
    return {decoder->forward(z), parts[0], parts[1]};
  }
  torch::nn::Linear encoder{nullptr};
  torch::nn::Linear decoder{nullptr};
};
TORCH_MODULE(Vae);

torch::Tensor vae_loss(const VaeImpl::Output& out, const torch::Tensor& x) {
  const auto divergence = out.mean.square() + out.log_variance.exp() - 1 - out.log_variance;
  return (out.reconstruction - x).square().sum(1).mean() + 0.5 * divergence.sum(1).mean();
}

torch::nn::Sequential generator() {
  return torch::nn::Sequential(torch::nn::Linear(kLatent, 8), torch::nn::Tanh(),
                               torch::nn::Linear(8, 8));
}
torch::nn::Sequential discriminator() {
  return torch::nn::Sequential(torch::nn::Linear(8, 8), torch::nn::Tanh(), torch::nn::Linear(8, 1));
}
torch::Tensor gan_loss(const torch::Tensor& score, double target) {
  return F::binary_cross_entropy_with_logits(score, torch::full_like(score, target));
}

struct ResidualImpl : torch::nn::Module {
  ResidualImpl() {
    stem = register_module("stem", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(4));
    body = register_module(
        "body", torch::nn::Sequential(
                    torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 4, 3).padding(1).bias(false)),
                    torch::nn::BatchNorm2d(4)));
    head = register_module("head", torch::nn::Linear(4, 2));
  }
  torch::Tensor forward(const torch::Tensor& images) {
    const auto x = torch::relu(norm->forward(stem->forward(images)));
    return head->forward(torch::relu(body->forward(x) + x).mean({2, 3}));
  }
  torch::nn::Conv2d stem{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Sequential body;
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Residual);

// --- Plain LibTorch ---

torch::Tensor plain_lstm() {
  const Data data({5, 3});
  torch::manual_seed(kSeed);
  LstmClassifier net;
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    const auto x = rows(data.x, step), y = rows(data.y, step);
    optimizer.zero_grad();
    const auto loss = F::cross_entropy(net->forward(x), y);
    loss.backward();
    optimizer.step();
  }
  return flat_weights(*net);
}

torch::Tensor plain_vae(const torch::Tensor& noise) {
  const Data data({8});
  torch::manual_seed(kSeed);
  Vae net;
  torch::optim::SGD optimizer(net->parameters(), 0.01);
  for (int step = 0; step < kSteps; ++step) {
    const auto x = rows(data.x, step);
    optimizer.zero_grad();
    const auto loss = vae_loss(net->forward(x, rows(noise, step)), x);
    loss.backward();
    optimizer.step();
  }
  return flat_weights(*net);
}

torch::Tensor plain_gan(const torch::Tensor& noise) {
  const Data data({8});
  torch::manual_seed(kSeed);
  auto g = generator();
  auto d = discriminator();
  torch::optim::SGD optimizer_g(g->parameters(), 0.05);
  torch::optim::SGD optimizer_d(d->parameters(), 0.05);
  for (int step = 0; step < kSteps; ++step) {
    const auto x = rows(data.x, step), z = rows(noise, step);
    optimizer_d.zero_grad();
    const auto fake = g->forward(z);
    const auto loss_d = gan_loss(d->forward(x), 1) + gan_loss(d->forward(fake.detach()), 0);
    loss_d.backward();
    optimizer_d.step();
    optimizer_g.zero_grad();
    const auto loss_g = gan_loss(d->forward(fake), 1);
    loss_g.backward();
    optimizer_g.step();
  }
  return torch::cat({flat_weights(*g), flat_weights(*d)});
}

torch::Tensor plain_residual() {
  const Data data({3, 4, 4});
  torch::manual_seed(kSeed);
  Residual net;
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    const auto x = rows(data.x, step), y = rows(data.y, step);
    optimizer.zero_grad();
    const auto loss = F::cross_entropy(net->forward(x), y);
    loss.backward();
    optimizer.step();
  }
  return torch::cat({flat_weights(*net), flat(net->buffers())});
}

// --- With GradientReducer or DistributedDataParallel ---

template <typename Wrapper, typename Module>
Wrapper wrapper_of(Module& net, const ProcessGroup& group) {
  if constexpr (std::is_same_v<Wrapper, GradientReducer>) {
    return Wrapper(*net, group);
  } else {
    return Wrapper(net, group);
  }
}

template <typename Wrapper>
torch::Tensor wrapped_lstm(const ProcessGroup& group) {
  const Data data({5, 3});
  torch::manual_seed(kSeed);
  LstmClassifier net;
  const auto ddp = wrapper_of<Wrapper>(net, group);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    const auto x = part(rows(data.x, step), group), y = part(rows(data.y, step), group);
    optimizer.zero_grad();
    const auto loss = F::cross_entropy(net->forward(x), y);
    loss.backward();
    optimizer.step();
  }
  return flat_weights(*net);
}

template <typename Wrapper>
torch::Tensor wrapped_vae(const ProcessGroup& group, const torch::Tensor& noise) {
  const Data data({8});
  torch::manual_seed(kSeed);
  Vae net;
  const auto ddp = wrapper_of<Wrapper>(net, group);
  torch::optim::SGD optimizer(net->parameters(), 0.01);
  for (int step = 0; step < kSteps; ++step) {
    const auto x = part(rows(data.x, step), group);
    optimizer.zero_grad();
    const auto loss = vae_loss(net->forward(x, part(rows(noise, step), group)), x);
    loss.backward();
    optimizer.step();
  }
  return flat_weights(*net);
}

template <typename Wrapper>
torch::Tensor wrapped_gan(const ProcessGroup& group, const torch::Tensor& noise) {
  const Data data({8});
  torch::manual_seed(kSeed);
  auto g = generator();
  auto d = discriminator();
  const auto ddp_g = wrapper_of<Wrapper>(g, group);
  const auto ddp_d = wrapper_of<Wrapper>(d, group);
  torch::optim::SGD optimizer_g(g->parameters(), 0.05);
  torch::optim::SGD optimizer_d(d->parameters(), 0.05);
  for (int step = 0; step < kSteps; ++step) {
    const auto x = part(rows(data.x, step), group), z = part(rows(noise, step), group);
    optimizer_d.zero_grad();
    const auto fake = g->forward(z);
    const auto loss_d = gan_loss(d->forward(x), 1) + gan_loss(d->forward(fake.detach()), 0);
    loss_d.backward();
    optimizer_d.step();
    optimizer_g.zero_grad();
    const FreezeGuard frozen(*d);
    const auto loss_g = gan_loss(d->forward(fake), 1);
    loss_g.backward();
    optimizer_g.step();
  }
  return torch::cat({flat_weights(*g), flat_weights(*d)});
}

template <typename Wrapper>
torch::Tensor wrapped_residual(const ProcessGroup& group) {
  const Data data({3, 4, 4});
  torch::manual_seed(kSeed);
  Residual net;
  convert_sync_batchnorm(*net, group);
  const auto ddp = wrapper_of<Wrapper>(net, group);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    const auto x = part(rows(data.x, step), group), y = part(rows(data.y, step), group);
    optimizer.zero_grad();
    const auto loss = F::cross_entropy(net->forward(x), y);
    loss.backward();
    optimizer.step();
  }
  require_equal_replicas(*net, group);
  return torch::cat({flat_weights(*net), flat(net->buffers())});
}

// --- With an Accelerator, which accumulates and resumes ---

// Batches of 16 on one process, or of 8 in windows of two. `stop_after`: steps; 0 = all.
struct Way {
  int num_steps = 1;
  int stop_after = 0;
  std::string resume_from = "";

  std::int64_t batch_size() const { return kPortBatch / num_steps; }
  AcceleratorOptions options() const { return {.gradient_accumulation = {.num_steps = num_steps}}; }
};

struct Ported {
  torch::Tensor weights;
  std::string checkpoint;
};

// Counts steps, and saves at the one after which the run stops.
struct Stop {
  bool operator()(Accelerator& accelerator) {
    if (!accelerator.sync_gradients() || ++steps != stop_after) return false;
    checkpoint = accelerator.save_state(folder);
    return true;
  }
  int stop_after;
  std::string folder;
  int steps = 0;
  std::string checkpoint = "";
};

Ported ported_lstm(Accelerators& ranks, const Way& way) {
  const Data data({5, 3});
  const auto accelerator = ranks.make(way.options());
  torch::manual_seed(kSeed);
  LstmClassifier net;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.5));
  torch::optim::StepLR steps(sgd, 4, 0.5);
  auto [loader, model, optimizer, scheduler] =
      accelerator->prepare(data.loader(way.batch_size()), net, sgd, steps);
  if (!way.resume_from.empty()) accelerator->load_state(way.resume_from);
  Stop stop{way.stop_after, ranks.folder().file("lstm")};
  for (const Batch& batch : loader) {
    const auto accumulation = accelerator->accumulate(*model);
    optimizer->zero_grad();
    const auto loss = F::cross_entropy(model->forward(batch.inputs.only()), batch.targets);
    accelerator->backward(loss);
    optimizer->step();
    scheduler->step();
    if (stop(*accelerator)) break;
  }
  return {flat_weights(*model), stop.checkpoint};
}

Ported ported_vae(Accelerators& ranks, const Way& way) {
  const Data data({8});
  const auto accelerator = ranks.make(way.options());
  torch::manual_seed(kSeed);
  Vae net;
  auto [loader, model, optimizer] =
      accelerator->prepare(data.loader(way.batch_size()), net,
                           std::make_unique<torch::optim::Adam>(net->parameters(), 0.01));
  if (!way.resume_from.empty()) accelerator->load_state(way.resume_from);
  Stop stop{way.stop_after, ranks.folder().file("vae")};
  for (const Batch& batch : loader) {
    const auto accumulation = accelerator->accumulate(*model);
    const RandomScope random({kSeed, batch.epoch, batch.positions});
    const auto x = batch.inputs.only();
    optimizer->zero_grad();
    const auto loss = vae_loss(model->forward(x, sample_noise({kLatent})), x);
    accelerator->backward(loss);
    optimizer->step();
    if (stop(*accelerator)) break;
  }
  return {flat_weights(*model), stop.checkpoint};
}

Ported ported_gan(Accelerators& ranks, const Way& way) {
  const Data data({8});
  const auto accelerator = ranks.make(way.options());
  torch::manual_seed(kSeed);
  auto [g, d] = accelerator->prepare(generator(), discriminator());
  auto [loader, optimizer_g, optimizer_d] =
      accelerator->prepare(data.loader(way.batch_size()), torch::optim::SGD(g->parameters(), 0.05),
                           torch::optim::SGD(d->parameters(), 0.05));
  if (!way.resume_from.empty()) accelerator->load_state(way.resume_from);
  Stop stop{way.stop_after, ranks.folder().file("gan")};
  for (const Batch& batch : loader) {
    const auto accumulation = accelerator->accumulate(*g, *d);
    const RandomScope random({kSeed, batch.epoch, batch.positions});
    optimizer_d->zero_grad();
    const auto fake = g->forward(sample_noise({kLatent}));
    const auto loss_d =
        gan_loss(d->forward(batch.inputs.only()), 1) + gan_loss(d->forward(fake.detach()), 0);
    accelerator->backward(loss_d);
    optimizer_d->step();
    optimizer_g->zero_grad();
    const FreezeGuard frozen(*d);
    accelerator->backward(gan_loss(d->forward(fake), 1));
    optimizer_g->step();
    if (stop(*accelerator)) break;
  }
  return {torch::cat({flat_weights(*g), flat_weights(*d)}), stop.checkpoint};
}

Ported ported_residual(Accelerators& ranks, const Way& way) {
  const Data data({3, 4, 4});
  const auto accelerator = ranks.make(way.options());
  torch::manual_seed(kSeed);
  const auto net = std::make_shared<ResidualImpl>();
  convert_sync_batchnorm(*net, accelerator->process_group());
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [loader, model, optimizer] =
      accelerator->prepare(data.loader(way.batch_size()), net, std::move(sgd));
  if (!way.resume_from.empty()) accelerator->load_state(way.resume_from);
  Stop stop{way.stop_after, ranks.folder().file("residual")};
  for (const Batch& batch : loader) {
    const auto accumulation = accelerator->accumulate(*model);
    optimizer->zero_grad();
    const auto loss = F::cross_entropy(model->forward(batch.inputs.only()), batch.targets);
    accelerator->backward(loss);
    optimizer->step();
    if (stop(*accelerator)) break;
  }
  return {torch::cat({flat_weights(*model), flat(model->buffers())}), stop.checkpoint};
}

// --- The tests ---

// The noise that ported programs draw, for all samples.
torch::Tensor all_noise() {
  const RandomScope random({kSeed, 0, torch::arange(kSteps * kPortBatch)});
  return sample_noise({kLatent});
}

template <typename Wrapper>
void expect_near_one_process() {
  run_ranks(2, [](const ProcessGroup& group) {
    const auto noise = all_noise();
    const auto near = [](const torch::Tensor& a, const torch::Tensor& b) {
      return (a - b).abs().max().item<double>() < 1e-5;
    };
    EXPECT_TRUE(near(wrapped_lstm<Wrapper>(group), plain_lstm()));
    EXPECT_TRUE(near(wrapped_vae<Wrapper>(group, noise), plain_vae(noise)));
    EXPECT_TRUE(near(wrapped_gan<Wrapper>(group, noise), plain_gan(noise)));
    EXPECT_TRUE(near(wrapped_residual<Wrapper>(group), plain_residual()));
  });
}

TEST(Ports, UnderAGradientReducerEndNearOneProcess) { expect_near_one_process<GradientReducer>(); }

TEST(Ports, UnderDistributedDataParallelEndNearOneProcess) {
  expect_near_one_process<DistributedDataParallel>();
}

struct Port {
  const char* name;
  std::function<Ported(Accelerators&, const Way&)> run;
};
const Port kPorts[] = {
    {"Lstm", ported_lstm}, {"Vae", ported_vae}, {"Gan", ported_gan}, {"Residual", ported_residual}};

class PortsOfAccelerator : public testing::TestWithParam<Port> {};
INSTANTIATE_TEST_SUITE_P(Kind, PortsOfAccelerator, testing::ValuesIn(kPorts),
                         [](const auto& port) { return port.param.name; });

// One run on one process writes its weights to a file, which two processes compare with theirs.
TEST_P(PortsOfAccelerator, AccumulateOnTwoProcessesAsOnOneAndResumeBitForBit) {
  const TemporaryFolder folder;
  const auto file = folder.file("weights.pt");
  run_accelerators(1, [&](Accelerators& ranks) {
    save_safetensors(file, {.tensors = {{"all", GetParam().run(ranks, {.num_steps = 2}).weights}}});
  });
  run_accelerators(2, [&](Accelerators& ranks) {
    const auto alone = load_safetensors(file).tensors.at("all");
    const auto whole = GetParam().run(ranks, {.num_steps = 2}).weights;
    EXPECT_LT((whole - alone).abs().max().item<double>(), 1e-4);
    const auto stopped = GetParam().run(ranks, {.num_steps = 2, .stop_after = 3});
    EXPECT_FALSE(torch::equal(stopped.weights, whole));
    const auto resumed = GetParam().run(ranks, {.num_steps = 2, .resume_from = stopped.checkpoint});
    EXPECT_TRUE(torch::equal(resumed.weights, whole));
  });
}

}  // namespace
}  // namespace ladder
