// SPDX-License-Identifier: Apache-2.0
// Three LibTorch programs and what an Accelerator adds to them: an LSTM classifier, a residual
// network with BatchNorm and a GAN. What a GradientReducer adds is in tests/parallel/.
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

// --- Plain LibTorch ---

template <typename Net>
torch::Tensor plain_classifier(const Data& data) {
  torch::manual_seed(kSeed);
  Net net;
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.5));
  torch::optim::StepLR scheduler(optimizer, 4, 0.5);
  for (int step = 0; step < kSteps; ++step) {
    const auto rows = [&](const torch::Tensor& all) {
      return all.narrow(0, step * kPortBatch, kPortBatch);
    };
    optimizer.zero_grad();
    F::cross_entropy(net->forward(rows(data.x)), rows(data.y)).backward();
    optimizer.step();
    scheduler.step();
  }
  return flat_state(*net);
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

template <typename MakeNet>
Ported ported_classifier(Accelerators& ranks, const Way& way, const Data& data,
                         const MakeNet& make_net) {
  const auto accelerator = ranks.make(way.options());
  torch::manual_seed(kSeed);
  auto net = make_net(accelerator->process_group());
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.5));
  torch::optim::StepLR steps(sgd, 4, 0.5);
  auto [loader, model, optimizer, scheduler] =
      accelerator->prepare(data.loader(way.batch_size()), net, sgd, steps);
  if (!way.resume_from.empty()) accelerator->load_state(way.resume_from);
  Stop stop(ranks, way);
  for (const Batch& batch : loader) {
    const auto accumulation = accelerator->accumulate(*model);
    optimizer->zero_grad();
    const auto loss = F::cross_entropy(model->forward(batch.inputs.only()), batch.targets);
    accelerator->backward(loss);
    optimizer->step();
    scheduler->step();
    if (stop(*accelerator)) break;
  }
  return {flat_state(*model), stop.checkpoint};
}

Ported ported_lstm(Accelerators& ranks, const Way& way) {
  const auto make_net = [](const ProcessGroup& /*group*/) { return LstmClassifier(); };
  return ported_classifier(ranks, way, Data({5, 3}), make_net);
}

Ported ported_residual(Accelerators& ranks, const Way& way) {
  return ported_classifier(ranks, way, Data({3, 4, 4}), [](const ProcessGroup& group) {
    const auto net = std::make_shared<ResidualImpl>();
    convert_sync_batchnorm(*net, group);
    return net;
  });
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
  Stop stop(ranks, way);
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

// --- The tests ---

TEST(Ports, EndNearPlainLibTorch) {
  run_accelerators(2, [](Accelerators& ranks) {
    const auto expect_near = [](const torch::Tensor& got, const torch::Tensor& expected) {
      EXPECT_LT((got - expected).abs().max().item<double>(), 1e-4);
    };
    expect_near(ported_lstm(ranks, {}).weights, plain_classifier<LstmClassifier>(Data({5, 3})));
    expect_near(ported_residual(ranks, {}).weights, plain_classifier<Residual>(Data({3, 4, 4})));
  });
}

struct Port {
  const char* name;
  std::function<Ported(Accelerators&, const Way&)> run;
};
const Port kPorts[] = {{"Lstm", ported_lstm}, {"Gan", ported_gan}, {"Residual", ported_residual}};

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
