// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/fully_sharded_data_parallel.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/types.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ladder/amp/grad_scaler.h"
#include "ladder/checkpoint/safetensors.h"
#include "ladder/core/error.h"
#include "ladder/nn/state_dict.h"
#include "ladder/optim/adam.h"
#include "ladder/optim/clip_grad.h"
#include "ladder/optim/sgd.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/replicas.h"
#include "tests/support/small_modules.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/training.h"

namespace ladder {
namespace {

constexpr std::int64_t kWidth = 49;  // sizes that no number of ranks divides

// A layer that adds to its input, of two linear ones.
struct Layer : Model {
  Layer()
      : up(register_module("up", torch::nn::Linear(kWidth, 2 * kWidth))),
        down(register_module("down", torch::nn::Linear(2 * kWidth, kWidth))) {}
  torch::Tensor forward(const Inputs& inputs) override {
    if (on_forward) on_forward();
    return inputs.only() + down->forward(torch::relu(scale * up->forward(inputs.only())));
  }
  torch::nn::Linear up;
  torch::nn::Linear down;
  torch::Tensor scale = register_parameter("scale", torch::full({}, 0.9));  // of no dimension
  std::function<void()> on_forward;
};

struct Stack : Model {
  explicit Stack(int depth = 3) : head(register_module("head", torch::nn::Linear(kWidth, 10))) {
    for (int i = 0; i < depth; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), std::make_shared<Layer>()));
    }
  }
  torch::Tensor forward(const Inputs& inputs) override {
    auto x = torch::avg_pool2d(inputs.only(), 4).flatten(1);
    for (const auto& layer : layers) {
      if (only != nullptr && layer.get() != only) continue;
      x = calls_forward ? layer->forward(x) : (*layer)(x);
    }
    return torch::log_softmax(at_least_float32(head->forward(x)), 1);
  }
  std::vector<std::shared_ptr<Layer>> layers;
  torch::nn::Linear head;
  bool calls_forward = false;
  const Layer* only = nullptr;  // all
};

// Fits into the shard of one rank.
struct Small : Model {
  torch::Tensor forward(const Inputs& inputs) override { return linear->forward(inputs.only()); }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(3, 2));
};

std::shared_ptr<Model> stack() {
  torch::manual_seed(42);
  return std::make_shared<Stack>();
}

using Networks = std::vector<std::pair<const Recipe&, std::function<std::shared_ptr<Model>()>>>;
const Networks& networks() {
  static const Networks all = {{basicnet(), stack},
                               {basicnet(), [] { return first_model(basicnet()); }},
                               {convnet(), [] { return first_model(convnet()); }}};
  return all;
}

Batch batch_of_step(int step, const ProcessGroup& group) {
  return slice_of(random_batch(7, static_cast<std::uint64_t>(step + 1)), group.rank(),
                  group.world_size());
}

void train_some(ReplicatedModel& model, torch::optim::Optimizer& optimizer, const Recipe& recipe,
                const ProcessGroup& group) {
  train(model, optimizer, recipe, 3, [&](int step) { return batch_of_step(step, group); });
  const auto loss = loss_of(model, recipe, batch_of_step(4, group));
  model.zero_grad();  // after the forward
  loss.backward();
  optimizer.step();
  model.zero_grad();
  for (const bool last : {false, true}) {
    const auto pause = model.no_sync(!last);
    loss_of(model, recipe, batch_of_step(3, group)).backward();
  }
  optimizer.step();
}

std::string whole_hash(FullyShardedDataParallel& model) {
  model.unshard();
  return weights_sha256(unwrapped_state_dict(model));
}

void expect_weights_of_ddp(const ProcessGroup& group) {
  for (const auto& [recipe, make] : networks()) {
    DistributedDataParallel ddp(make(), group);
    train_some(ddp, *recipe.make_optimizer(ddp.parameters()), recipe, group);
    ddp.eval();
    const auto expected = weights_sha256(unwrapped_state_dict(ddp));
    for (const auto& options :
         {FullyShardedOptions{}, FullyShardedOptions{.reshard_after_forward = true},
          FullyShardedOptions{.reshard_after_forward = false, .prefetch = false}}) {
      SCOPED_TRACE(recipe.name());
      const auto network = make();
      const auto optimizer = recipe.make_optimizer(network->parameters());  // before the division
      FullyShardedDataParallel model(network, group, options);
      train_some(model, *optimizer, recipe, group);
      model.eval();
      EXPECT_EQ(whole_hash(model), expected);
    }
  }
}

class FullySharded : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, FullySharded, testing::Values(1, 2, 3, 4));

TEST_P(FullySharded, HasTheWeightsOfDistributedDataParallel) {
  run_ranks(GetParam(), expect_weights_of_ddp, {.backend = "shm"});
}

TEST_ON_RANKS(FullyShardedDataParallel, HasTheWeightsOfDistributedDataParallelOverGloo, 2) {
  expect_weights_of_ddp(group);
}

TEST_P(FullySharded, KeepsItsShareOfParametersGradientsAndState) {
  run_ranks(GetParam(), [](const ProcessGroup& group) {
    const auto network = stack();
    std::int64_t elements = 0;
    for (const auto& parameter : network->parameters()) elements += parameter.numel();
    FullyShardedDataParallel model(network, group, {.prefetch = false});
    AdamW optimizer(model.parameters());
    train(model, optimizer, basicnet(), 1, [&](int step) { return batch_of_step(step, group); });
    auto sums = torch::zeros({3}, torch::kInt64);
    for (const auto& parameter : model.parameters()) {
      sums[0] += parameter.numel();
      sums[1] += parameter.grad().defined() ? parameter.grad().numel() : 0;
    }
    for (const auto& [name, tensor] : optimizer.state_dict(model).tensors) {
      if (name.ends_with("exp_avg")) sums[2] += tensor.numel();
    }
    const auto units = model.units();
    std::int64_t share = 0;
    for (const auto& unit : units) share += unit.shard;
    EXPECT_LE(sums[0].item<std::int64_t>(), group.world_size() == 1 ? elements : share);
    group.all_reduce(sums);
    EXPECT_TRUE(sums.eq(elements).all().item<bool>()) << sums;
    if (group.world_size() == 1) return;
    // The most at the end of a layer's backward: itself and the outermost unit, and its gradients.
    ASSERT_EQ(units.size(), 4);
    EXPECT_LE(share, elements / group.world_size() + 4 * 2 * 64 * 2);
    EXPECT_EQ(model.most_whole_bytes(), 4 * (units[0].whole + 2 * units[1].whole));
  });
}

// Its loops round the last elements of a tensor otherwise, so a part has other bits than the whole;
// in five steps of 1e-2 that stays below 1e-5.
TEST_ON_RANKS(FullyShardedDataParallel, IsSteppedByTheOptimizersOfLibTorch, 3) {
  DistributedDataParallel ddp(stack(), group);
  FullyShardedDataParallel model(stack(), group);
  for (ReplicatedModel* each :
       {static_cast<ReplicatedModel*>(&ddp), static_cast<ReplicatedModel*>(&model)}) {
    torch::optim::Adam optimizer(each->parameters(), torch::optim::AdamOptions(1e-2));
    train_some(*each, optimizer, basicnet(), group);
  }
  model.unshard();
  const auto expected = unwrapped_state_dict(ddp);
  for (const auto& [name, tensor] : unwrapped_state_dict(model)) {
    EXPECT_TRUE(torch::allclose(tensor, expected.at(name), 0.0, 1e-5)) << name;
  }
}

TEST_ON_RANKS(FullyShardedDataParallel, ClipsByTheNormOfAllShards, 3) {
  DistributedDataParallel ddp(stack(), group);
  FullyShardedDataParallel model(stack(), group);
  for (ReplicatedModel* each :
       {static_cast<ReplicatedModel*>(&ddp), static_cast<ReplicatedModel*>(&model)}) {
    run_backward(*each, basicnet(), batch_of_step(0, group));
  }
  const auto expected = clip_grad_norm_(ddp.parameters(), 0.1).item<double>();
  EXPECT_NEAR(clip_grad_norm_(model.parameters(), 0.1).item<double>(), expected, 1e-6 * expected);
  auto both = model.parameters();
  both.push_back(ddp.parameters().front());
  EXPECT_ERROR(clip_grad_norm_(both, 0.1), UsageError,
               "some parameters are divided over the ranks, others are not");
}

// Of a network that lies in rank 0's shard as a whole, so the others have no gradient.
TEST_ON_RANKS(FullyShardedDataParallel, SkipsAStepOnAllRanksWhereOneHasAllGradients, 3) {
  torch::manual_seed(42);
  FullyShardedDataParallel model(std::make_shared<Small>(), group);
  SGD optimizer(model.parameters(), {.lr = 0.1});
  for (const bool unscales : {false, true}) {
    for (const double factor : {1.0, std::numeric_limits<double>::infinity()}) {
      GradScaler scaler({.init_scale = 2.0});
      model.zero_grad();
      scaler.scale(factor * model.forward(torch::ones({4, 3})).sum()).backward();
      if (unscales) scaler.unscale_(optimizer);
      EXPECT_EQ(scaler.step(optimizer).taken(), factor == 1.0) << unscales;
      EXPECT_GE(clip_grad_norm_(model.parameters(), 1e3).item<double>(), 1.0);
    }
  }
}

// A backward of layer 1 gathers layer 0 ahead, which the step changes before it is used.
TEST_ON_RANKS(FullyShardedDataParallel, DropsWhatItGatheredAheadInVain, 2) {
  std::vector<std::string> hashes;
  for (const bool prefetch : {false, true}) {
    torch::manual_seed(42);
    const auto network = std::make_shared<Stack>();
    FullyShardedDataParallel model(network, group, {.prefetch = prefetch});
    SGD optimizer(model.parameters(), {.lr = 0.1});
    const auto step = [&](const std::vector<const Layer*>& passes) {
      model.zero_grad();
      for (const auto* only : passes) {
        network->only = only;
        loss_of(model, basicnet(), batch_of_step(0, group)).backward();
      }
      optimizer.step();
    };
    step({nullptr});
    step({network->layers[0].get(), network->layers[1].get()});
    step({nullptr});
    hashes.push_back(whole_hash(model));
  }
  EXPECT_EQ(hashes[1], hashes[0]);
}

// Rounded to 16 bits: 8 significant bits, so the output is near by 2 percent.
TEST_ON_RANKS(FullyShardedDataParallel, ComputesIn16BitsAndStepsIn32, 2) {
  FullyShardedDataParallel exact(stack(), group);
  FullyShardedDataParallel model(stack(), group, {.param_precision = Precision::kBf16});
  const auto batch = batch_of_step(0, group);
  const auto expected = exact.forward(batch.inputs);
  const auto output = model.forward(batch.inputs);
  EXPECT_EQ(output.scalar_type(), torch::kFloat32);
  EXPECT_FALSE(torch::equal(output, expected));
  EXPECT_TRUE(torch::allclose(output, expected, 0.02, 0.02));
  output.sum().backward();
  SGD optimizer(model.parameters(), {.lr = 0.1});
  optimizer.step();
  for (const auto& parameter : model.parameters()) {
    EXPECT_EQ(parameter.scalar_type(), torch::kFloat32);
  }
  const auto pause = model.no_sync();
  model.forward(batch.inputs).sum().backward();
  for (const auto& parameter : model.parameters()) {
    EXPECT_EQ(parameter.grad().scalar_type(), torch::kFloat32);
  }
}

TEST_ON_RANKS(FullyShardedDataParallel, IsThePlainNetworkOnOneRank, 1) {
  const auto network = stack();
  const auto batch = batch_of_step(0, group);
  const auto expected = network->forward(batch.inputs);
  FullyShardedDataParallel model(network, group, {.param_precision = Precision::kBf16});
  EXPECT_TRUE(torch::equal(model.forward(batch.inputs), expected));
  const TemporaryFolder folder;
  const auto path = folder.file("weights.safetensors");
  save_model(model, path);  // without unshard()
  EXPECT_EQ(weights_sha256(load_safetensors(path).tensors),
            weights_sha256(unwrapped_state_dict(model)));
}

TEST_ON_RANKS(FullyShardedDataParallel, ForgetsAForwardThatThrew, 2) {
  const auto network = stack();
  FullyShardedDataParallel model(network, group);
  const auto batch = batch_of_step(0, group);
  auto& layer = *static_cast<Stack&>(*network).layers[1];
  layer.on_forward = [] { throw std::runtime_error("planned"); };
  EXPECT_THROW(model.forward(batch.inputs), std::runtime_error);
  layer.on_forward = {};
  EXPECT_EQ(layer.scale.dim(), 0);  // whole
  model.forget();
  EXPECT_EQ(layer.scale.dim(), 1);
  loss_of(model, basicnet(), batch).backward();
}

struct Table : Model {
  torch::Tensor forward(const Inputs& inputs) override { return table->forward(inputs.only()); }
  torch::nn::Embedding table =
      register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(5, kWidth)));
};

TEST_ON_RANKS(FullyShardedDataParallel, GoesOnAfterABackwardThatThrew, 2) {
  std::vector<std::string> hashes;
  for (const bool fails : {false, true}) {
    torch::manual_seed(1);
    const auto network = std::make_shared<Table>();
    FullyShardedDataParallel model(network, group);
    SGD optimizer(model.parameters(), {.lr = 0.1});
    const auto backward = [&] { model.forward(torch::arange(group.rank(), 4)).sum().backward(); };
    if (fails) {
      network->table->options.sparse(true);
      EXPECT_ERROR(backward(), UsageError, "the gradient of table.weight is sparse");
      network->table->options.sparse(false);
    }
    backward();
    optimizer.step();
    hashes.push_back(whole_hash(model));
  }
  EXPECT_EQ(hashes[1], hashes[0]);
}

// The moment at which rank 1 is lost. Rank 0 waits for its part in a collective.
class FullyShardedLoss : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Moments, FullyShardedLoss,
                         testing::Values("construction", "forward", "backward", "reduction",
                                         "clipping", "unshard"));

TEST_P(FullyShardedLoss, EndsTheOtherRank) {
  const std::string moment = GetParam();
  const auto check = [&](const ProcessGroup& group) {
    signal(SIGTERM, SIG_IGN);  // of spawn, which ends the other rank
    group.barrier();           // no rank is lost before all ignore it
    const auto at = [&](const std::string& name) {
      if (group.rank() == 1 && name == moment) kill(getpid(), SIGKILL);
    };
    at("construction");
    const auto network = stack();
    FullyShardedDataParallel model(network, group);
    auto& layer = *static_cast<Stack&>(*network).layers[1];
    layer.on_forward = [&] { at("forward"); };
    const auto loss = loss_of(model, basicnet(), batch_of_step(0, group));
    loss.register_hook([&](const torch::Tensor&) { at("backward"); });
    layer.up->weight.register_hook([&](const torch::Tensor&) { at("reduction"); });
    loss.backward();
    at("clipping");
    clip_grad_norm_(model.parameters(), 1.0);
    at("unshard");
    model.unshard();
  };
  const auto end = end_of_group(2, check, {.backend = "shm"});
  const std::string collective = moment == "reduction" ? "reduce_scatter" : "all_gather";
  EXPECT_NE(end.messages.find(collective + " on rank 0 of 2: rank 1 has ended"), std::string::npos)
      << end.messages;
}

TEST_ON_RANKS(FullyShardedDataParallel, RefusesWhatItWouldTrainWrong, 2) {
  const auto images = random_batch(2).inputs;
  const auto uncalled = std::make_shared<Stack>();
  uncalled->calls_forward = true;
  FullyShardedDataParallel without_call(uncalled, group);
  EXPECT_ERROR(without_call.forward(images), UsageError,
               "the network used parameters of layer0, which was not called");
  FullyShardedDataParallel called(stack(), group);
  EXPECT_ERROR(called.forward(torch::zeros({2, 1, 24, 24})), c10::Error, "shapes");

  const auto tied = std::make_shared<Stack>();
  for (const auto& layer : tied->layers) layer->register_module("tied", tied->head);
  EXPECT_ERROR(FullyShardedDataParallel(tied, group), UsageError,
               "two units share a parameter: head.weight and layer0.tied.weight");
  EXPECT_ERROR(FullyShardedDataParallel(stack(), group, {.units = {{"head"}}}), UsageError,
               "units: expected a Model with parameters named head");
  const auto doubles = stack();
  doubles->to(torch::kFloat64);
  EXPECT_ERROR(FullyShardedDataParallel(doubles, group), UsageError, "expected Float");

  const auto sharded = stack();
  FullyShardedDataParallel model(sharded, group);
  SGD optimizer(model.parameters(), {.lr = 0.1});
  model.unshard();
  EXPECT_ERROR(optimizer.step(), UsageError, "has made the network whole; hint: call reshard()");
  model.reshard();
  EXPECT_ERROR(save_model(model, "none"), UsageError, "call unshard() of FullyShardedDataParallel");
  EXPECT_ERROR(DistributedDataParallel(sharded, group), UsageError,
               "the parameters are divided over these ranks already");

  const auto wrapped = stack();
  const DistributedDataParallel wrapper(wrapped, group);
  const auto before = flat_weights(*wrapped);
  EXPECT_ERROR(FullyShardedDataParallel(wrapped, group), UsageError,
               "another wrapper has head.weight already; hint: wrap a module once");
  EXPECT_TRUE(torch::equal(flat_weights(*wrapped), before));
}

}  // namespace
}  // namespace ladder
