// SPDX-License-Identifier: Apache-2.0
// Programs of the usual forms, with the recipes of docs/library.md between `#region NAME` and
// `#endregion NAME`. Each trains by one global batch per step, on two ranks and on one.
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ladder/accelerate/accelerator.h"
#include "ladder/comm/process_group.h"
#include "ladder/data/batch.h"
#include "ladder/nn/model.h"
#include "ladder/parallel/convert_sync_batchnorm.h"
#include "ladder/parallel/gradient_reducer.h"
#include "tests/support/accelerators.h"
#include "tests/support/ranks.h"
#include "tests/support/relative_difference.h"
#include "tests/support/training.h"

namespace ladder {
namespace {

// This rank's rows of a batch. The first ranks have one more where they do not divide.
torch::Tensor own_rows(const torch::Tensor& all, const ProcessGroup& group) {
  return all.tensor_split(group.world_size()).at(static_cast<std::size_t>(group.rank()));
}

// --- GPT: tied weights, gradient checkpointing, accumulation, EMA ---

constexpr int kVocabulary = 11;
constexpr int kWidth = 8;

struct Block : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    const auto parts = attention->forward(norm->forward(x)).chunk(3, 2);
    const auto y = x + torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0,
                                                           /*is_causal=*/true);
    return y + down->forward(torch::gelu(up->forward(y)));
  }

  torch::nn::LayerNorm norm =
      register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  torch::nn::Linear attention = register_module("attention", torch::nn::Linear(kWidth, 3 * kWidth));
  torch::nn::Linear up = register_module("up", torch::nn::Linear(kWidth, 4 * kWidth));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(4 * kWidth, kWidth));
};

// #region checkpointing
struct Recomputed : torch::autograd::Function<Recomputed> {
  using Context = torch::autograd::AutogradContext;
  static torch::Tensor forward(Context* context, Block* block, const torch::Tensor& x,
                               torch::TensorList /*weights*/) {
    context->save_for_backward({x});
    context->saved_data["block"] = reinterpret_cast<std::int64_t>(block);
    return block->forward(x);  // keeps nothing for the backward
  }
  static std::vector<torch::Tensor> backward(Context* context, std::vector<torch::Tensor> grads) {
    auto* const block = reinterpret_cast<Block*>(context->saved_data["block"].toInt());
    auto inputs = block->parameters();
    inputs.insert(inputs.begin(), context->get_saved_variables()[0].detach().requires_grad_());
    const torch::AutoGradMode record(true);
    auto results = torch::autograd::grad({block->forward(inputs[0])}, inputs, grads);
    results.insert(results.begin(), torch::Tensor());  // of `block`
    return results;
  }
};
// #endregion checkpointing

// Exact: the same operations, once more.
TEST_ALONE(Recipes, ABlockThatIsComputedAgainHasItsGradients) {
  torch::manual_seed(1);
  Block block;
  const auto x = torch::randn({2, 6, kWidth}, torch::requires_grad());
  const auto gradients_of = [&](const torch::Tensor& y) {
    auto inputs = block.parameters();
    inputs.push_back(x);
    return flat(torch::autograd::grad({y.square().sum()}, inputs));
  };
  const auto again = Recomputed::apply(&block, x, torch::TensorList(block.parameters()));
  EXPECT_TRUE(torch::equal(gradients_of(again), gradients_of(block.forward(x))));
}

struct Gpt : torch::nn::Module {
  // #region tied
  torch::Tensor forward(const torch::Tensor& tokens) {
    auto x = embedding->forward(tokens);
    x = Recomputed::apply(block.get(), x, torch::TensorList(block->parameters()));
    return torch::linear(x, embedding->weight);  // the output layer
  }
  // #endregion tied

  torch::nn::Embedding embedding =
      register_module("embedding", torch::nn::Embedding(kVocabulary, kWidth));
  std::shared_ptr<Block> block = register_module("block", std::make_shared<Block>());
};

// Of the next token.
torch::Tensor loss_sum(const torch::Tensor& scores, const torch::Tensor& tokens) {
  return torch::cross_entropy_loss(scores.slice(1, 0, -1).flatten(0, 1),
                                   tokens.slice(1, 1).flatten(), {}, at::Reduction::Sum);
}

torch::Tensor gpt(const ProcessGroup& group) {
  torch::manual_seed(1);
  const auto net = std::make_shared<Gpt>();
  ladder::GradientReducer reducer(*net, group);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  const auto average = std::make_shared<Gpt>();
  ladder::copy_values(*net, *average);
  for (int step = 0; step < 4; ++step) {
    const auto tokens = torch::randint(kVocabulary, {9, 6});
    std::vector<torch::Tensor> parts;
    for (const auto& part : tokens.chunk(3)) parts.push_back(own_rows(part, group));
    const NumItems items{.global = 9 * 5, .processes = group.world_size()};
    // #region no-sync
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto pause = reducer.no_sync(i + 1 < parts.size());  // the last backward sends the sum
      items.mean(loss_sum(net->forward(parts[i]), parts[i])).backward();
    }
    // #endregion no-sync
    // #region ema
    optimizer.step();
    optimizer.zero_grad();
    const torch::NoGradGuard no_grad;
    const auto weights = net->parameters();
    for (std::size_t i = 0; const auto& mean : average->parameters()) mean.lerp_(weights[i++], 0.1);
    // #endregion ema
  }
  return torch::cat({flat_weights(*net), flat_weights(*average)});
}

TEST(Recipes, ACheckpointHasTheAverageThatIsPrepared) {
  run_accelerators(2, [](Accelerators& ranks) {
    const auto folder = ranks.folder().file("checkpoint");
    for (const double value : {0.5, 0.25}) {
      const auto accelerator = ranks.make();
      torch::nn::Linear net(3, 2);
      torch::nn::Linear average(3, 2);
      for (auto& mean : average->parameters()) mean.requires_grad_(false).fill_(value);
      accelerator->prepare(net, average);
      if (value == 0.5) accelerator->save_state(folder);
      accelerator->load_state(folder);
      EXPECT_EQ(average->weight.min().item<double>(), 0.5);
    }
  });
}

// --- U-Net: an encoder that is frozen in the first phase ---

struct UNet : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& images) {
    const auto skipped = encoder->forward(images);
    const auto deep = torch::relu(middle->forward(skipped));
    return decoder->forward(torch::cat({skipped, torch::upsample_nearest2d(deep, {8, 8})}, 1));
  }

  static torch::nn::Conv2d layer(int in, int out, int stride) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1).stride(stride));
  }
  torch::nn::Sequential encoder =
      register_module("encoder", torch::nn::Sequential(layer(1, 4, 1), torch::nn::BatchNorm2d(4)));
  torch::nn::Conv2d middle = register_module("middle", layer(4, 8, 2));
  torch::nn::Conv2d decoder = register_module("decoder", layer(12, 1, 1));
};

torch::Tensor unet(const ProcessGroup& group) {
  torch::manual_seed(2);
  const auto net = std::make_shared<UNet>();
  ladder::convert_sync_batchnorm(*net, group);
  const auto train = [&](torch::optim::Optimizer& optimizer) {
    for (int step = 0; step < 3; ++step) {
      const auto images = torch::randn({5, 1, 8, 8});
      const auto rows = own_rows(images, group);
      const NumItems items{.global = images.numel(), .processes = group.world_size()};
      items.mean((net->forward(rows) - rows.sign()).square().sum()).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
  };
  // #region phases
  for (const bool with_encoder : {false, true}) {
    for (auto& weight : net->encoder->parameters()) weight.requires_grad_(with_encoder);
    net->encoder->train(with_encoder);                   // BatchNorm keeps its statistics too
    const ladder::GradientReducer reducer(*net, group);  // one per phase
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    train(optimizer);
  }
  // #endregion phases
  return torch::cat({flat_weights(*net), flat(net->buffers())});
}

// --- CLIP: a loss over the samples of all ranks ---

// #region loss-over-ranks
torch::Tensor rows_of_all(const torch::Tensor& own, const ladder::ProcessGroup& group) {
  auto rows = group.all_gather(own.detach());
  rows.begin()[group.rank()] = own;  // the only ones with a gradient
  return torch::cat(rows);
}
torch::Tensor sum_of_all(const torch::Tensor& own, const ladder::ProcessGroup& group) {
  auto sum = own.detach().clone();
  group.all_reduce(sum);
  return sum + (own - own.detach());  // the value of the sum, the gradient of `own`
}
// #endregion loss-over-ranks

torch::Tensor clip(const ProcessGroup& group) {
  torch::manual_seed(3);
  torch::nn::Linear net(4, 3);
  const ladder::GradientReducer reducer(*net, group);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (int step = 0; step < 4; ++step) {
    const auto images = own_rows(torch::randn({7, 4}), group);
    const auto texts = own_rows(torch::randn({7, 4}), group);
    // #region loss-over-ranks-step
    const auto x = net->forward(images);
    const auto scores = rows_of_all(x, group).matmul(rows_of_all(net->forward(texts), group).t());
    const auto loss = torch::cross_entropy_loss(scores, torch::arange(scores.size(0))) +
                      sum_of_all(x.sum(0), group).square().mean();
    (loss * group.world_size()).backward();  // the mean over the ranks is then the sum
    // #endregion loss-over-ranks-step
    optimizer.step();
    optimizer.zero_grad();
  }
  return flat_weights(*net);
}

// --- PPO: an environment per process, other numbers of steps on each, an early stop ---

constexpr int kWalks = 3;

// A walk between 0 and 1 in steps of 0.1, to be ended at the right end.
struct Walk {
  explicit Walk(int number)
      : random(at::detail::createCPUGenerator(5 + static_cast<std::uint64_t>(number))) {}

  // The next episode, of at most 40 steps.
  void play(torch::nn::Linear& net) {
    const torch::NoGradGuard no_grad;
    seen.clear();
    actions.clear();
    float place = 0.1F * static_cast<float>(torch::randint(2, 8, {1}, random).item<int>());
    while (place > 0.05F && place < 0.95F && seen.size() < 40) {
      seen.push_back(torch::tensor({place, 1.0F}));
      const auto right = net->forward(seen.back())[0].sigmoid();
      actions.push_back((torch::rand({1}, random) < right).to(torch::kFloat32));
      place += actions.back().item<float>() > 0 ? 0.1F : -0.1F;
    }
    returns.assign(seen.size(), torch::full({1}, place >= 0.95F ? 1.0F : -1.0F));
  }

  at::Generator random;
  std::vector<torch::Tensor> seen, actions, returns;
};

// On rank 0 alone: whether the policy goes to the right everywhere.
bool has_learned(torch::nn::Linear& net) {
  const torch::NoGradGuard no_grad;
  return net->forward(torch::tensor({{0.1F, 1.0F}, {0.9F, 1.0F}}))
             .select(1, 0)
             .min()
             .item<float>() > 1.0F;
}

torch::Tensor ppo_loss_sum(const torch::Tensor& outputs, const torch::Tensor& before,
                           const torch::Tensor& actions, const torch::Tensor& returns) {
  const auto log_probability = [&](const torch::Tensor& scores) {
    return -torch::binary_cross_entropy_with_logits(scores, actions, {}, {}, at::Reduction::None);
  };
  const auto ratio =
      (log_probability(outputs.select(1, 0)) - log_probability(before.select(1, 0))).exp();
  const auto advantage = returns - before.select(1, 1);
  const auto value = (outputs.select(1, 1) - returns).square();
  return (0.5 * value - torch::min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)).sum();
}

torch::Tensor ppo(const ProcessGroup& group) {
  torch::manual_seed(4);
  torch::nn::Linear net(2, 2);  // score of a step to the right, value
  const ladder::GradientReducer reducer(*net, group);
  torch::optim::SGD optimizer(net->parameters(), 0.5);
  // #region environments
  std::vector<Walk> walks;  // of this rank; the number is the seed
  for (int i = group.rank(); i < kWalks; i += group.world_size()) walks.emplace_back(i);
  // #endregion environments
  int updates = 0;
  for (; updates < 50; ++updates) {
    std::vector<torch::Tensor> seen, actions, returns;
    for (auto& walk : walks) {
      walk.play(net);
      seen.insert(seen.end(), walk.seen.begin(), walk.seen.end());
      actions.insert(actions.end(), walk.actions.begin(), walk.actions.end());
      returns.insert(returns.end(), walk.returns.begin(), walk.returns.end());
    }
    const auto x = torch::stack(seen);
    const auto before = net->forward(x).detach();
    // #region uneven
    auto steps = torch::tensor({x.size(0)});
    group.all_reduce(steps);
    const ladder::NumItems items{.global = steps.item<std::int64_t>(),
                                 .processes = group.world_size()};
    // #endregion uneven
    for (int epoch = 0; epoch < 3; ++epoch) {
      items.mean(ppo_loss_sum(net->forward(x), before, torch::cat(actions), torch::cat(returns)))
          .backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    // #region stop
    auto stop = torch::tensor(group.rank() == 0 && has_learned(net));
    group.broadcast(stop);
    if (stop.item<bool>()) break;
    // #endregion stop
  }
  EXPECT_EQ(updates, 16);
  return torch::cat({flat_weights(*net), torch::tensor({static_cast<float>(updates)})});
}

// --- A graph network over a range of batches, with another number of nodes in each ---

// One or more graphs: nodes [N, 3], edges [2, E], targets [N].
struct Graphs {
  torch::Tensor nodes, edges, targets;
};

// Those of numbers `begin` to `end`, each a ring.
Graphs graphs_of(int begin, int end) {
  Graphs all = {torch::empty({0, 3}), torch::empty({2, 0}, torch::kInt64), {}};
  for (int number = begin; number < end; ++number) {
    const std::int64_t size = 3 + 5 * number % 7;
    const auto from = torch::arange(size);
    const auto ring = torch::stack({from, (from + 1) % size}) + all.nodes.size(0);
    auto random = at::detail::createCPUGenerator(static_cast<std::uint64_t>(number));
    all.nodes = torch::cat({all.nodes, torch::randn({size, 3}, random)});
    all.edges = torch::cat({all.edges, ring}, 1);
  }
  all.targets = all.nodes.prod(1);
  return all;
}

struct GraphNet : torch::nn::Module {
  torch::Tensor forward(const Graphs& graphs) {
    const auto x = torch::relu(first->forward(graphs.nodes));
    const auto sent = message->forward(x).index_select(0, graphs.edges[0]);
    return last->forward(x.index_add(0, graphs.edges[1], sent)).squeeze(1);
  }

  torch::nn::Linear first = register_module("first", torch::nn::Linear(3, 8));
  torch::nn::Linear message = register_module("message", torch::nn::Linear(8, 8));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(8, 1));
};

// Two graphs per step: of five, the last step has one.
torch::Tensor graph_network(Accelerator& accelerator) {
  torch::manual_seed(6);
  const auto net = std::make_shared<GraphNet>();
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const int per_batch = 2 / accelerator.num_processes();
  std::vector<Graphs> batches;
  for (int i = 0; i < 5; i += per_batch)
    batches.push_back(graphs_of(i, std::min(i + per_batch, 5)));
  auto loader = accelerator.prepare(batches);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (const Graphs& batch : loader) {
      const auto sum = (model->forward(batch) - batch.targets).square().sum();
      accelerator.backward(accelerator.num_items(batch.nodes.size(0)).mean(sum));
      optimizer->step();
      optimizer->zero_grad();
    }
  }
  return flat_weights(*net);
}

TEST(Recipes, AGraphNetworkOverARangeHasTheWeightsOfOneProcessOnTwo) {
  run_accelerators(2, [](Accelerators& ranks) {
    const auto of_two = graph_network(*ranks.make());
    forget_launcher();
    Accelerator alone({.cpu = true, .threads = 1, .quiet = true});
    EXPECT_LE(relative_difference(of_two, graph_network(alone)), 1e-6);
  });
}

// --- All of them ---

struct Named {
  const char* name;
  torch::Tensor (*run)(const ProcessGroup& group);
};

class Program : public testing::TestWithParam<Named> {};

// Sums over the rows have another order: gradients differ by 1e-6 at most, and so do weights after
// a few steps of SGD.
TEST_P(Program, HasTheWeightsOfOneRankOnTwo) {
  run_ranks(2, [](const ProcessGroup& group) {
    const auto of_two = GetParam().run(group);
    const auto difference = relative_difference(of_two, GetParam().run(ProcessGroup::single()));

    EXPECT_LE(difference, 1e-6);
  });
}

INSTANTIATE_TEST_SUITE_P(Recipes, Program,
                         testing::Values(Named{"Gpt", gpt}, Named{"UNet", unet},
                                         Named{"Clip", clip}, Named{"Ppo", ppo}),
                         [](const auto& program) { return program.param.name; });

}  // namespace
}  // namespace ladder
