// SPDX-License-Identifier: Apache-2.0
// Four LibTorch programs and what a GradientReducer, DistributedDataParallel and an Accelerator add
// to them: an LSTM classifier, a residual network with BatchNorm, a VAE and a GAN.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "ladder/accelerate/accelerator.h"
#include "ladder/data/dataset.h"
#include "ladder/nn/random_scope.h"
#include "ladder/nn/sample_noise.h"
#include "ladder/parallel/convert_sync_batchnorm.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "ladder/parallel/gradient_reducer.h"
#include "tests/support/accelerators.h"
#include "tests/support/exact.h"
#include "tests/support/ranks.h"
#include "tests/support/training.h"

namespace ladder {
namespace {

namespace F = torch::nn::functional;

constexpr int kSteps = 10;
constexpr std::int64_t kPortBatch = 16;
constexpr std::int64_t kLatent = 3;
constexpr std::uint64_t kSeed = 5;

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

struct VaeImpl : torch::nn::Module {
  VaeImpl() {
    encoder = register_module("encoder", torch::nn::Linear(8, 2 * kLatent));
    decoder = register_module("decoder", torch::nn::Linear(kLatent, 8));
  }
  // The reconstruction, and mean and logarithm of the variance of the latent numbers.
  std::tuple<torch::Tensor, torch::Tensor, torch::Tensor> forward(const torch::Tensor& x) {
    const auto code = encoder->forward(x).chunk(2, 1);
    const auto z = code[0] + sample_noise({kLatent}) * (0.5 * code[1]).exp();
    return {decoder->forward(z), code[0], code[1]};
  }
  torch::nn::Linear encoder{nullptr};
  torch::nn::Linear decoder{nullptr};
};
TORCH_MODULE(Vae);

// --- Their losses ---

template <typename Classifier>
torch::Tensor loss_of(Classifier& net, const torch::Tensor& x, const torch::Tensor& y) {
  return F::cross_entropy(net.forward(x), y);
}
torch::Tensor loss_of(VaeImpl& net, const torch::Tensor& x, const torch::Tensor& /*y*/) {
  const auto [copy, mean, log_variance] = net.forward(x);
  const auto divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp());
  return F::mse_loss(copy, x) + 0.01 * divergence.mean();
}
torch::Tensor loss_of_d(torch::nn::Sequential& d, const torch::Tensor& x,
                        const torch::Tensor& fake) {
  return gan_loss(d->forward(x), 1) + gan_loss(d->forward(fake.detach()), 0);
}

// --- Plain LibTorch, and what a GradientReducer or DistributedDataParallel adds ---

enum class Replicas { kNone, kReducer, kDdp };
const torch::optim::SGDOptions kSgd = torch::optim::SGDOptions(0.1).momentum(0.5);

// Makes the gradients of a module those of all ranks.
template <typename Net>
std::shared_ptr<void> replicate(Replicas replicas, Net net, const ProcessGroup& group) {
  if (replicas == Replicas::kReducer) return std::make_shared<GradientReducer>(*net, group);
  if (replicas == Replicas::kDdp) return std::make_shared<DistributedDataParallel>(net, group);
  return nullptr;
}

// This rank's part of each batch, in a window of so many micro-batches.
std::vector<Batch> batches_of(const Data& data, const ProcessGroup& group, int num_steps) {
  const std::int64_t part = kPortBatch / num_steps / group.world_size();
  std::vector<Batch> batches;
  for (std::int64_t i = group.rank(); i < kPortBatch * kSteps / part; i += group.world_size()) {
    batches.push_back({.inputs = {data.x.narrow(0, i * part, part)},
                       .targets = data.y.narrow(0, i * part, part),
                       .positions = torch::arange(i * part, (i + 1) * part)});
  }
  return batches;
}

// Calls an optimizer in its place in a window.
class Window {
 public:
  explicit Window(int num_steps) : num_steps_(num_steps) {}
  void begin_batch() { ++batches_; }
  void backward(torch::optim::Optimizer& optimizer, const torch::Tensor& loss) const {
    if (batches_ % num_steps_ == 1 % num_steps_) optimizer.zero_grad();
    (loss / num_steps_).backward();
    if (batches_ % num_steps_ == 0) optimizer.step();
  }
  bool is_at_end() const { return batches_ % num_steps_ == 0; }

 private:
  int num_steps_;
  int batches_ = 0;
};

template <typename Net>
torch::Tensor trained(const Data& data, Replicas replicas, const ProcessGroup& group,
                      int num_steps) {
  torch::manual_seed(kSeed);
  Net net;
  convert_sync_batchnorm(*net, group);
  const auto replica = replicate(replicas, net, group);
  torch::optim::SGD optimizer(net->parameters(), kSgd);
  torch::optim::StepLR scheduler(optimizer, 4, 0.5);
  Window window(num_steps);
  for (const Batch& batch : batches_of(data, group, num_steps)) {
    const RandomScope random({kSeed, 0, batch.positions});
    window.begin_batch();
    window.backward(optimizer, loss_of(*net, batch.inputs.only(), batch.targets));
    if (window.is_at_end()) scheduler.step();
  }
  return flat_state(*net);
}

torch::Tensor trained_gan(const Data& data, Replicas replicas, const ProcessGroup& group,
                          int num_steps) {
  torch::manual_seed(kSeed);
  auto g = generator();
  auto d = discriminator();
  const auto replica_g = replicate(replicas, g, group);
  const auto replica_d = replicate(replicas, d, group);
  torch::optim::SGD optimizer_g(g->parameters(), 0.05);
  torch::optim::SGD optimizer_d(d->parameters(), 0.05);
  Window window(num_steps);
  for (const Batch& batch : batches_of(data, group, num_steps)) {
    const RandomScope random({kSeed, 0, batch.positions});
    window.begin_batch();
    const auto fake = g->forward(sample_noise({kLatent}));
    window.backward(optimizer_d, loss_of_d(d, batch.inputs.only(), fake));
    const FreezeGuard frozen(*d);
    window.backward(optimizer_g, gan_loss(d->forward(fake), 1));
  }
  return torch::cat({flat_weights(*g), flat_weights(*d)});
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
  Stop(const Accelerators& ranks, const Way& way)
      : stop_after(way.stop_after), folder(ranks.folder().file("checkpoint")) {}
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

template <typename Net>
Ported ported(Accelerators& ranks, const Way& way, const Data& data) {
  const auto accelerator = ranks.make(way.options());
  torch::manual_seed(kSeed);
  Net net;
  convert_sync_batchnorm(*net, accelerator->process_group());
  torch::optim::SGD sgd(net->parameters(), kSgd);
  torch::optim::StepLR steps(sgd, 4, 0.5);
  auto [loader, model, optimizer, scheduler] =
      accelerator->prepare(data.loader(way.batch_size()), net, sgd, steps);
  if (!way.resume_from.empty()) accelerator->load_state(way.resume_from);
  Stop stop(ranks, way);
  for (const Batch& batch : loader) {
    const auto accumulation = accelerator->accumulate(*model);
    const RandomScope random({kSeed, batch.epoch, batch.positions});
    optimizer->zero_grad();
    accelerator->backward(loss_of(*net, batch.inputs.only(), batch.targets));
    optimizer->step();
    scheduler->step();
    if (stop(*accelerator)) break;
  }
  return {flat_state(*net), stop.checkpoint};
}

Ported ported_gan(Accelerators& ranks, const Way& way, const Data& data) {
  const auto accelerator = ranks.make(way.options());
  torch::manual_seed(kSeed);
  const auto plain_g = generator();
  const auto plain_d = discriminator();
  auto [g, d] = accelerator->prepare(plain_g, plain_d);
  auto [loader, optimizer_g, optimizer_d] =
      accelerator->prepare(data.loader(way.batch_size()), torch::optim::SGD(g->parameters(), 0.05),
                           torch::optim::SGD(d->parameters(), 0.05));
  if (!way.resume_from.empty()) accelerator->load_state(way.resume_from);
  Stop stop(ranks, way);
  for (const Batch& batch : loader) {
    const auto accumulation = accelerator->accumulate(*g, *d);
    const RandomScope random({kSeed, batch.epoch, batch.positions});
    optimizer_d->zero_grad();
    const auto fake = g->forward(sample_noise({kLatent}));
    accelerator->backward(loss_of_d(d, batch.inputs.only(), fake));
    optimizer_d->step();
    optimizer_g->zero_grad();
    const FreezeGuard frozen(*d);
    accelerator->backward(gan_loss(d->forward(fake), 1));
    optimizer_g->step();
    if (stop(*accelerator)) break;
  }
  return {torch::cat({flat_weights(*g), flat_weights(*d)}), stop.checkpoint};
}

// --- The tests ---

struct Program {
  const char* name;
  std::vector<std::int64_t> shape;  // of a sample
  torch::Tensor (*trained)(const Data&, Replicas, const ProcessGroup&, int num_steps);
  Ported (*ported)(Accelerators&, const Way&, const Data&);
};
const Program kPrograms[] = {
    {"Lstm", {5, 3}, trained<LstmClassifier>, ported<LstmClassifier>},
    {"Residual", {3, 4, 4}, trained<Residual>, ported<Residual>},
    {"Vae", {8}, trained<Vae>, ported<Vae>},
    {"Gan", {8}, trained_gan, ported_gan},
};

class Ports : public testing::TestWithParam<Program> {
 protected:
  static double difference(const torch::Tensor& one, const torch::Tensor& other) {
    return (one - other).abs().max().item<double>();
  }
};
INSTANTIATE_TEST_SUITE_P(Kind, Ports, testing::ValuesIn(kPrograms),
                         [](const auto& program) { return program.param.name; });

TEST_P(Ports, EndOnTwoProcessesNearPlainLibTorch) {
  run_accelerators(2, [](Accelerators& ranks) {
    const Data data(GetParam().shape);
    const auto plain = [&](int num_steps) {
      return GetParam().trained(data, Replicas::kNone, ProcessGroup::single(), num_steps);
    };
    const auto group = ranks.make()->process_group();
    for (const auto replicas : {Replicas::kReducer, Replicas::kDdp}) {
      EXPECT_LT(difference(GetParam().trained(data, replicas, group, 1), plain(1)), 1e-4);
    }
    for (const int num_steps : {1, 2}) {
      const auto ported = GetParam().ported(ranks, {.num_steps = num_steps}, data).weights;
      EXPECT_LT(difference(ported, plain(num_steps)), 1e-4) << num_steps;
    }
  });
}

TEST_P(Ports, ResumeBitForBit) {
  run_accelerators(2, [](Accelerators& ranks) {
    const Data data(GetParam().shape);
    const auto whole = GetParam().ported(ranks, {.num_steps = 2}, data).weights;
    const auto stopped = GetParam().ported(ranks, {.num_steps = 2, .stop_after = 3}, data);
    EXPECT_FALSE(torch::equal(stopped.weights, whole));
    const Way way = {.num_steps = 2, .resume_from = stopped.checkpoint};
    EXPECT_TRUE(torch::equal(GetParam().ported(ranks, way, data).weights, whole));
  });
}

}  // namespace
}  // namespace ladder
