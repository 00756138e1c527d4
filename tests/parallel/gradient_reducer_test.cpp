// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/gradient_reducer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/optim/sgd.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "ladder/parallel/replica_check.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/replicas.h"
#include "tests/support/small_net.h"
#include "tests/support/training.h"
#include "tests/support/two_layers.h"

namespace ladder {
namespace {

using Bytes = std::vector<std::int64_t>;
using Reducer = GradientReducer;

// Not a Model: two inputs, two outputs, and a layer that may stay unused.
class Pair : public torch::nn::Module {
 public:
  Pair()
      : left(register_module("left", torch::nn::Linear(3, 2))),
        right(register_module("right", torch::nn::Linear(4, 2))),
        spare(register_module("spare", torch::nn::Linear(2, 2))) {
    for (const auto& item : named_parameters()) {
      const torch::NoGradGuard no_grad;
      item.value().copy_(torch::arange(item.value().numel()).view(item.value().sizes()) * 0.1);
    }
  }

  std::tuple<torch::Tensor, torch::Tensor> forward(const torch::Tensor& a, const torch::Tensor& b,
                                                   bool with_spare = true) {
    const auto x = left(a);
    return {with_spare ? spare(x) : x, right(b) + x};
  }

  torch::nn::Linear left;
  torch::nn::Linear right;
  torch::nn::Linear spare;
};

// The inputs of one rank: other ones on each.
std::pair<torch::Tensor, torch::Tensor> inputs_of(int rank) {
  return {torch::arange(6).view({2, 3}) * 0.1 + rank, torch::arange(8).view({2, 4}) * 0.2 - rank};
}

torch::Tensor loss_of_pair(const std::tuple<torch::Tensor, torch::Tensor>& output) {
  return (std::get<0>(output).square() + std::get<1>(output).sin()).sum();
}

void run_pair_backward(Reducer& reducer, Pair& pair, int rank, bool with_spare = true) {
  const auto [a, b] = inputs_of(rank);
  pair.zero_grad();
  loss_of_pair(reducer.forward([&, a = a, b = b] {
    return pair.forward(a, b, with_spare);
  })).backward();
}

// The average over ranks 0 to world_size - 1, computed here.
torch::Tensor average_pair_gradient(int world_size) {
  Pair pair;
  for (int rank = 0; rank < world_size; ++rank) {
    const auto [a, b] = inputs_of(rank);
    (loss_of_pair(pair.forward(a, b)) / world_size).backward();
  }
  return flat_gradients(pair);
}

TEST_ON_RANKS(GradientReducer, ServesAnyModuleWithAnyForward, 3) {
  for (const bool find_unused : {false, true}) {
    Pair pair;
    Reducer reducer(pair, group, {.find_unused_parameters = find_unused});
    for (int step = 0; step < 2; ++step) {
      run_pair_backward(reducer, pair, group.rank());
      EXPECT_LE(relative_difference(flat_gradients(pair), average_pair_gradient(3)), 1e-6);
    }
  }
}

// Called as without a reducer: one or several forwards, also of another module, then one backward.
TEST_ON_RANKS(GradientReducer, NeedsNoCallAroundTheForward, 3) {
  Pair pair;
  const Reducer reducer(pair, group);
  const auto [a, b] = inputs_of(group.rank());
  for (int step = 0; step < 3; ++step) {
    pair.zero_grad();
    loss_of_pair(pair.forward(a, b)).backward();
    EXPECT_LE(relative_difference(flat_gradients(pair), average_pair_gradient(3)), 1e-6);
  }
  pair.zero_grad();
  (loss_of_pair(pair.forward(a, b)) + loss_of_pair(pair.forward(a, b))).backward();
  EXPECT_LE(relative_difference(flat_gradients(pair), 2 * average_pair_gradient(3)), 1e-6);
}

// Each at the end of the same backward, on every rank.
TEST_ON_RANKS(GradientReducer, NamesUnusedParametersAlsoThen, 2) {
  const std::string unused = "expected a gradient for every parameter, got none for spare.weight, ";
  Pair pair;
  Reducer reducer(pair, group);
  EXPECT_ERROR(run_pair_backward(reducer, pair, group.rank(), /*with_spare=*/false),
               DistributedError, unused);
  Pair without_call;
  const Reducer other(without_call, group);
  const auto [a, b] = inputs_of(group.rank());
  EXPECT_ERROR(loss_of_pair(without_call.forward(a, b, /*with_spare=*/false)).backward(),
               DistributedError, unused);
  Pair finds;
  const Reducer finding(finds, group, {.find_unused_parameters = true});
  EXPECT_ERROR(loss_of_pair(finds.forward(a, b)).backward(), UsageError, "reducer.forward(");
}

TEST_ON_RANKS(GradientReducer, SendsNothingWhileTheModuleIsFrozen, 2) {
  Pair pair;
  Reducer reducer(pair, group);
  if (group.rank() == 0) {
    const FreezeGuard frozen(pair);
    auto a = torch::ones({1, 3}, torch::requires_grad());
    loss_of_pair(reducer.forward([&] { return pair.forward(a, torch::ones({1, 4})); })).backward();
    EXPECT_TRUE(a.grad().defined());
    EXPECT_FALSE(pair.left->weight.grad().defined());
  }
  run_pair_backward(reducer, pair, group.rank());
  EXPECT_LE(relative_difference(flat_gradients(pair), average_pair_gradient(2)), 1e-6);
}

TEST_ON_RANKS(GradientReducer, SendsBuffersAtTheEndOfTheBackward, 2) {
  torch::nn::Sequential network(torch::nn::Linear(3, 2), torch::nn::BatchNorm1d(2));
  const Reducer reducer(*network, group);
  const auto loss = network->forward(torch::ones({2, 3}) * (group.rank() + 1)).sum();
  EXPECT_FALSE(equal_on_all_ranks(flat(network->buffers()), group));
  loss.backward();
  require_equal_replicas(*network, group);
}

TEST_ON_RANKS(GradientReducer, TakesOutputsOfManyKindsAndSomeThatAreNotThere, 2) {
  for (const bool find_unused : {false, true}) {
    TwoLayers network;
    Reducer reducer(network, group, {.find_unused_parameters = find_unused});
    const auto [output, none] = reducer.forward(
        [&] { return std::pair(network.forward(torch::ones({4, 2})), torch::Tensor()); });
    output.mean().backward();
    EXPECT_TRUE(network.a->weight.grad().defined());
    EXPECT_ERROR(reducer.forward([] { return torch::Tensor(); }), UsageError,
                 "DistributedDataParallel: the forward returned no tensor");
    const auto x = torch::ones({1});
    EXPECT_TRUE(reducer.forward([&] { return x; }).is_same(x));
    EXPECT_TRUE(reducer.forward([&] { return std::vector<torch::Tensor>{x}; }).at(0).is_same(x));
    EXPECT_TRUE(reducer.forward([&] { return std::pair(x, x); }).second.is_same(x));
    EXPECT_TRUE(std::get<2>(reducer.forward([&] { return std::tuple(x, x, x); })).is_same(x));
    const auto as_lstm = reducer.forward([&] { return std::tuple(x, std::tuple(x, x)); });
    EXPECT_TRUE(std::get<1>(std::get<1>(as_lstm)).is_same(x));
    struct Named {
      torch::Tensor mean;
      std::vector<torch::Tensor> tensors() const { return {mean}; }
    };
    EXPECT_TRUE(reducer.forward([&] { return Named{x}; }).mean.is_same(x));
  }
}

TEST_ON_RANKS(GradientReducer, LeavesUnusedParametersAloneIfToldAndAveragesTheRest, 2) {
  Pair pair;
  Reducer reducer(pair, group, {.find_unused_parameters = true});
  SGD optimizer(pair.parameters(), {.lr = 0.1});
  // A rank that does not use it counts as a gradient of zero.
  run_pair_backward(reducer, pair, group.rank(), /*with_spare=*/group.rank() == 0);
  Pair of_rank_0;
  const auto [a, b] = inputs_of(0);
  (loss_of_pair(of_rank_0.forward(a, b)) / 2).backward();
  EXPECT_LE(relative_difference(pair.spare->weight.grad(), of_rank_0.spare->weight.grad()), 1e-6);
  const auto spare = flat_weights(*pair.spare);
  const auto right = flat_weights(*pair.right);
  for (int step = 0; step < 3; ++step) {
    run_pair_backward(reducer, pair, group.rank(), /*with_spare=*/false);
    optimizer.step();
  }
  EXPECT_TRUE(torch::equal(flat_weights(*pair.spare), spare));
  EXPECT_FALSE(torch::equal(flat_weights(*pair.right), right));
  require_equal_replicas(pair, group);
}

TEST_ON_RANKS(GradientReducer, TakesOtherUnusedParametersInEachStep, 2) {
  Pair pair;
  Reducer reducer(pair, group, {.find_unused_parameters = true});
  for (const bool with_spare : {false, true, false, true}) {
    run_pair_backward(reducer, pair, group.rank(), with_spare);
    EXPECT_EQ(pair.spare->weight.grad().defined(), with_spare);
    EXPECT_TRUE(equal_on_all_ranks(pair.left->weight.grad(), group));
  }
}

TEST_ON_RANKS(GradientReducer, NamesAParameterWithASparseGradient, 2) {
  torch::nn::Sequential network(
      torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 2).sparse(true)));
  const Reducer reducer(*network, group);
  EXPECT_ERROR(network->forward(torch::tensor({1, 3})).sum().backward(), UsageError,
               "DistributedDataParallel: the gradient of 0.weight is sparse; hint: ");
}

Bytes bucket_bytes_after_a_step(const ProcessGroup& group, std::optional<double> cap_mb) {
  const auto model =
      wrapped(first_model(basicnet()), group, {.reducer = {.bucket_cap_mb = cap_mb}});
  EXPECT_EQ(model->reducer().bucket_bytes(), Bytes{4 * 1'199'882});  // all in one at first
  const auto slice = slice_of(random_batch(2), group.rank(), group.world_size());
  for (int step = 0; step < 2; ++step) run_backward(*model, basicnet(), slice);
  return model->reducer().bucket_bytes();
}

TEST_ON_RANKS(GradientReducer, SendsTheLastLayersFirstInBucketsOfTheSizeThatIsSet, 2) {
  const std::int64_t fc2 = 4 * (128 * 10 + 10);
  const std::int64_t fc1 = 4 * (9216 * 128 + 128);
  const std::int64_t conv2 = 4 * (32 * 64 * 9 + 64);
  const std::int64_t conv1 = 4 * (32 * 9 + 32);
  EXPECT_EQ(bucket_bytes_after_a_step(group, std::nullopt), (Bytes{fc2 + fc1, conv2 + conv1}));
  EXPECT_EQ(bucket_bytes_after_a_step(group, 25.0), (Bytes{fc2 + fc1 + conv2 + conv1}));
  EXPECT_EQ(bucket_bytes_after_a_step(group, 5.0), (Bytes{fc2 + fc1 + conv2 + conv1}));
  const auto each = bucket_bytes_after_a_step(group, 1e-6);
  EXPECT_EQ(each.size(), 8U);
  EXPECT_EQ(each.at(0) + each.at(1), fc2);
  EXPECT_EQ(each.at(6) + each.at(7), conv1);
  const auto never_rebuilt =
      wrapped(first_model(basicnet()), group,
              {.reducer = {.bucket_cap_mb = 1e-6, .find_unused_parameters = true}})
          ->reducer()
          .bucket_bytes();
  EXPECT_EQ(never_rebuilt.back(), 4 * 32 * 9) << "conv1.weight, the last of backward";
}

// On three ranks with shared memory alone: Gloo's ring of three adds in an order that depends on
// the place in the bucket.
TEST(GradientReducer, HasTheSameGradientForAnyBuckets) {
  const auto check = [](const ProcessGroup& group) {
    const auto slice = slice_of(random_batch(6), group.rank(), group.world_size());
    const auto gradient = [&](std::optional<double> cap_mb) {
      const auto model =
          wrapped(first_model(convnet()), group, {.reducer = {.bucket_cap_mb = cap_mb}});
      for (int step = 0; step < 2; ++step) run_backward(*model, convnet(), slice);
      return flat_gradients(*model);
    };
    EXPECT_TRUE(torch::equal(gradient(std::nullopt), gradient(1e-6)));
  };
  run_ranks(2, check, {.backend = "gloo"});
  run_ranks(3, check, {.backend = "shm"});
}

TEST_ON_RANKS(NoSync, AddsUpTwoHalvesToTheGradientOfTheWholeBatch, 2) {
  const auto batch = random_batch(8);
  const auto half = [&](int which) { return part_of(batch, 4 * group.rank() + 2 * which, 2, 2); };
  const auto model = wrapped(small_net(), group);
  for (int step = 0; step < 2; ++step) {  // the second with the buckets made anew
    model->zero_grad();
    {
      const auto pause = model->no_sync();
      loss_of(*model, basicnet(), half(0)).backward();
      const auto alone = small_net();
      run_backward(*alone, basicnet(), half(0));
      EXPECT_TRUE(torch::equal(flat_gradients(*model), flat_gradients(*alone)));
      EXPECT_FALSE(equal_on_all_ranks(flat_gradients(*model), group));
    }
    loss_of(*model, basicnet(), half(1)).backward();
    EXPECT_TRUE(equal_on_all_ranks(flat_gradients(*model), group));
    EXPECT_LE(distance_from_one_process(*model, batch), 1e-6);
  }
}

TEST_ON_RANKS(NoSync, CountsWhereTheBackwardRunsUntilTheOutermostScopeEnds, 2) {
  const auto model = wrapped(small_net(), group);
  const auto slice = slice_of(random_batch(4), group.rank(), 2);
  for (Model* called : {static_cast<Model*>(model.get()), &model->module()}) {
    const auto synchronises = [&] {
      run_backward(*called, basicnet(), slice);
      return equal_on_all_ranks(flat_gradients(*model), group);
    };
    {
      const auto outer = model->no_sync();
      {
        const auto inner = model->no_sync();
      }
      EXPECT_FALSE(synchronises());
    }
    EXPECT_TRUE(synchronises());
    std::optional<GradientReducer::NoSync> held;
    for (const bool pauses : {true, false, true}) {
      held = model->no_sync(pauses);
      EXPECT_EQ(synchronises(), !pauses);
    }
    held.reset();
    EXPECT_TRUE(synchronises());
  }
}

// As in Python: buffers are not sent in the forward after one that did not synchronise.
TEST_ON_RANKS(NoSync, KeepsTheBuffersOfTheNextForwardLocal, 2) {
  const auto model = wrapped(first_model(convnet()), group);
  const auto alone = first_model(convnet());
  const auto slice = slice_of(random_batch(8), group.rank(), 2);
  const auto buffers_stay_local = [&] {
    loss_of(*model, convnet(), slice).backward();
    alone->forward(slice.inputs);
    return torch::equal(flat(model->buffers()), flat(alone->buffers()));
  };
  {
    const auto pause = model->no_sync();
    EXPECT_TRUE(buffers_stay_local());
  }
  EXPECT_TRUE(buffers_stay_local());
  EXPECT_EQ(buffers_stay_local(), group.rank() == 0);
}

TEST_ON_RANKS(BucketView, HoldsTheGradientsAndEqualsTheDefault, 2) {
  const auto run = [&](bool as_view) {
    const auto model =
        wrapped(small_net(), group, {.reducer = {.gradient_as_bucket_view = as_view}});
    const auto optimizer = basicnet().make_optimizer(model->parameters());
    train(*model, *optimizer, basicnet(), 3, [&](int step) {
      return slice_of(random_batch(4, static_cast<std::uint64_t>(step)), group.rank(), 2);
    });
    const auto parameters = model->parameters();
    EXPECT_EQ(parameters.at(0).grad().is_alias_of(parameters.at(1).grad()), as_view);
    return flat_weights(*model);
  };
  EXPECT_TRUE(torch::equal(run(true), run(false)));
}

// A bucket of more than one piece is summed where it lies; a hook's tensors are not.
TEST_ON_RANKS(BucketView, SurvivesLibTorchsZeroGradAlsoInSharedMemory, 2) {
  const auto run = [&](GradientReducerOptions options) {
    torch::manual_seed(1);
    torch::nn::Linear linear(400, 300);
    const Reducer reducer(*linear, group, std::move(options));
    torch::optim::SGD optimizer(linear->parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad(/*set_to_none=*/step == 1);
      const auto input = torch::randn(
          {8, 400},
          at::detail::createCPUGenerator(static_cast<std::uint64_t>(10 * group.rank() + step)));
      linear(input).square().mean().backward();
      optimizer.step();
    }
    return flat_weights(*linear);
  };
  const auto weights = run({});
  EXPECT_TRUE(torch::equal(weights, run({.gradient_as_bucket_view = false})));
  EXPECT_TRUE(torch::equal(weights, run({.comm_hook = allreduce_hook()})));
}

TEST_ON_RANKS(CheckReplicas, FindsARankThatDriftedAtTheNextCheckOnEveryRank, 3) {
  const auto model = wrapped(small_net(), group, {.reducer = {.check_replicas = 2}});
  const auto step = [&] {
    run_backward(*model, basicnet(), slice_of(random_batch(3), group.rank(), 3));
  };
  step();  // checked
  if (group.rank() == 2) {
    const torch::NoGradGuard no_grad;
    model->module().named_parameters()["linear.bias"][5] += 1e-6;
  }
  step();
  EXPECT_ERROR(step(), DistributedError, "expected linear.bias ");
}

// A warning, once, in the backward 1, 2, 4 or 8 after the change, on rank 0.
TEST(DriftWatch, WarnsOfWeightsThatOneRankAloneChanges) {
  for (const int changed_before : {1, 2, 3, 0}) {
    const auto end = end_of_ranks(2, [&](int /*rank*/) {
      const auto group = init_process_group();
      torch::nn::Linear net(2, 2);
      const Reducer reducer(*net, group);
      for (int backward = 1; backward <= 8; ++backward) {
        const torch::NoGradGuard no_grad;
        if (backward == changed_before && group.rank() == 1) net->bias[1] += 1e-6;
        const torch::AutoGradMode record(true);
        net->forward(torch::ones({1, 2})).sum().backward();
      }
    });
    expect_well(end);
    const auto line = fmt::format(
        "[rank 0] warning: replicas: bias differs between rank 0 and rank 1, as compared after "
        "backward {}; hint: ",
        changed_before == 3 ? 4 : changed_before);
    EXPECT_EQ(end.messages.starts_with(line), changed_before != 0) << end.messages;
    EXPECT_EQ(std::ranges::count(end.messages, '\n'), changed_before == 0 ? 0 : 1);
  }
}

TEST_ON_RANKS(GradientReducer, RefusesAParameterThatAnotherWrapperHas, 2) {
  Pair pair;
  for (const bool first_views : {false, true}) {
    const Reducer first(pair, group, {.gradient_as_bucket_view = first_views});
    for (const bool views : {false, true}) {
      const auto second = [&] { Reducer(*pair.left, group, {.gradient_as_bucket_view = views}); };
      if (first_views || views) {
        EXPECT_ERROR(second(), UsageError,
                     "another wrapper has weight already; hint: wrap a module once");
      } else {
        EXPECT_NO_THROW(second());
      }
    }
  }
  EXPECT_NO_THROW(Reducer(*pair.left, group));
}

// An exception in the backward when some gradients have arrived.
struct Throwing : torch::autograd::Function<Throwing> {
  static torch::Tensor forward(torch::autograd::AutogradContext* /*context*/,
                               const torch::Tensor& x) {
    return x.clone();
  }
  static std::vector<torch::Tensor> backward(torch::autograd::AutogradContext* /*context*/,
                                             const std::vector<torch::Tensor>& /*gradients*/) {
    throw std::runtime_error("thrown");
  }
};

TEST_ON_RANKS(GradientReducer, GoesOnAfterAFailedBackwardWithANewWrapper, 2) {
  Pair pair;
  std::optional<Reducer> reducer;
  reducer.emplace(pair, group);
  const auto [a, b] = inputs_of(group.rank());
  const auto x = Throwing::apply(pair.left(a));
  EXPECT_THROW(loss_of_pair({pair.spare(x), pair.right(b)}).backward(), std::runtime_error);
  EXPECT_ERROR(loss_of_pair(pair.forward(a, b)).backward(), UsageError,
               "the backward before failed, when a part of the gradients was averaged; hint: ");
  reducer.reset();
  reducer.emplace(pair, group);
  run_pair_backward(*reducer, pair, group.rank());
  EXPECT_LT((flat_gradients(pair) - average_pair_gradient(2)).abs().max().item<double>(), 1e-5);
}

TEST_ON_RANKS(GradientReducer, RefusesAParameterThatHasChangedAtTheNextForward, 2) {
  using Change = void (*)(torch::Tensor& weight);
  const char* const for_phases =
      "a new wrapper for each phase of freezing; or wrap the model "
      "unfrozen, with find_unused_parameters = true";
  const std::tuple<bool, Change, const char*, const char*> cases[] = {
      {true, [](auto& weight) { weight.set_requires_grad(true); }, "requires_grad of", for_phases},
      {false, [](auto& weight) { weight.set_requires_grad(false); }, "requires_grad of",
       for_phases},
      {false, [](auto& weight) { weight.set_data(weight.detach().t().contiguous().t()); },
       "strides of", "memory format first"},
      {false, [](auto& weight) { weight.set_data(weight.detach().to(torch::kFloat64)); },
       "the node of the gradient (loading an archive, or to(), replaces it) of", "dtype"}};
  for (const auto& [frozen, change, what, hint] : cases) {
    Pair pair;
    pair.spare->weight.set_requires_grad(!frozen);
    Reducer reducer(pair, group);
    run_pair_backward(reducer, pair, group.rank());
    change(pair.spare->weight);
    EXPECT_ERROR(run_pair_backward(reducer, pair, group.rank()), UsageError,
                 std::string(what) + " spare.weight changed after construction", hint);
  }
}

// A wrapper per phase, and all phases with one.
TEST_ON_RANKS(GradientReducer, TrainsAHeadBehindAFrozenEncoder, 2) {
  for (const bool by_option : {false, true}) {
    Pair pair;
    std::optional<Reducer> reducer;
    for (const bool frozen : {false, true, false}) {
      pair.left->weight.set_requires_grad(!frozen);
      if (!by_option || !reducer) {
        reducer.reset();
        reducer.emplace(pair, group, GradientReducerOptions{.find_unused_parameters = by_option});
      }
      for (int step = 0; step < 2; ++step) run_pair_backward(*reducer, pair, group.rank());
      EXPECT_EQ(pair.left->weight.grad().defined(), !frozen);
      EXPECT_TRUE(equal_on_all_ranks(pair.right->weight.grad(), group));
    }
  }
}

// They are sent with the others at the start, and then left alone.
TEST_ON_RANKS(GradientReducer, DoesNotWaitForFrozenParameters, 2) {
  Pair pair;
  {
    const torch::NoGradGuard no_grad;
    pair.spare->weight.add_(group.rank());
  }
  pair.spare->weight.set_requires_grad(false);
  Reducer reducer(pair, group);
  EXPECT_TRUE(equal_on_all_ranks(pair.spare->weight, group));
  run_pair_backward(reducer, pair, group.rank());
  EXPECT_FALSE(pair.spare->weight.grad().defined());
  EXPECT_TRUE(equal_on_all_ranks(pair.left->weight.grad(), group));
}

// As on one rank. All have its weights, and backwards through it send nothing.
TEST_ON_RANKS(GradientReducer, WrapsATeacherThatIsFrozenFromTheBeginning, 2) {
  const auto teacher = small_net();
  for (auto& parameter : teacher->parameters()) {
    const torch::NoGradGuard no_grad;
    parameter.set_requires_grad(false).add_(group.rank());
  }
  const auto model = wrapped(teacher, group);
  model->eval();
  require_equal_replicas(*model, group);
  EXPECT_EQ(model->reducer().bucket_bytes(), Bytes());
  auto images = random_batch(2).inputs.only().set_requires_grad(true);
  if (group.rank() == 0) model->forward(images).sum().backward();
  EXPECT_EQ(images.grad().defined(), group.rank() == 0);
}

// Computes its part again in the backward.
struct Reentrant : torch::autograd::Function<Reentrant> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context,
                               const torch::Tensor& input, torch::nn::LinearImpl* layer) {
    context->save_for_backward({input});
    context->saved_data["layer"] = reinterpret_cast<std::int64_t>(layer);
    return layer->forward(input);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const torch::AutoGradMode with_gradients(true);
    auto* const layer =
        reinterpret_cast<torch::nn::LinearImpl*>(context->saved_data["layer"].toInt());
    const auto input = context->get_saved_variables().at(0).detach().requires_grad_();
    layer->forward(input).backward(gradients.at(0));
    return {input.grad(), torch::Tensor()};
  }
};

TEST_ON_RANKS(GradientReducer, RefusesABackwardWithinABackward, 2) {
  for (const auto& [is_first, find_unused] :
       {std::pair{true, false}, {false, false}, {false, true}}) {
    Pair pair;
    Reducer reducer(pair, group, {.find_unused_parameters = find_unused});
    const auto x = torch::ones({1, 3}, torch::requires_grad());
    const auto other = pair.right(torch::ones({1, 4})).sum();
    const auto output = reducer.forward([&, first = is_first] {  // of the backward
      return first ? Reentrant::apply(pair.left(x), pair.spare.get())
                   : pair.spare(Reentrant::apply(x, pair.left.get()));
    });
    EXPECT_ERROR((output.sum() + other).backward(), UsageError, "a backward within a backward",
                 "call torch::autograd::grad in the checkpoint");
  }
}

using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)>;

const MakeOptimizer kOptimizers[] = {
    [](auto all) { return std::make_unique<SGD>(all, SgdOptions{.lr = 0.1}); },
    [](auto all) { return std::make_unique<torch::optim::SGD>(all, 0.1); }};

// Three steps of a module and of `others`, which the loss multiplies, in one optimizer or in two.
void train_beside(const ProcessGroup& group, const MakeOptimizer& make, bool in_one,
                  const std::function<torch::Tensor(torch::nn::Module& net)>& other_of,
                  const std::function<void(torch::Tensor& other)>& before_step = {}) {
  torch::nn::Linear net(2, 2);
  const Reducer reducer(*net, group);
  auto other = other_of(*net);
  auto all = net->parameters();
  if (in_one && !other.is_same(all.back())) all.push_back(other);
  const auto optimizer = make(all);
  const auto second = make({other});
  for (int step = 0; step < 3; ++step) {
    (net(torch::ones({1, 2}) * (group.rank() + 1)).sum() * other.sum()).backward();
    if (before_step) before_step(other);
    optimizer->step();
    if (!in_one) second->step();
    optimizer->zero_grad();
    other.mutable_grad().reset();
  }
}

TEST_ON_RANKS(AveragedGradient, IsRequiredOfAllThatIsTrained, 2) {
  const auto tensor = [](auto& /*net*/) { return torch::ones({3}, torch::requires_grad()); };
  const auto later = [](torch::nn::Module& net) {
    return net.register_parameter("later", torch::ones({3}));
  };
  for (const auto& make : kOptimizers) {
    for (const bool in_one : {true, false}) {
      EXPECT_ERROR(train_beside(group, make, in_one, tensor), UsageError,
                   "no wrapper averages the gradient of a tensor, Float [3]", "register it in");
      EXPECT_ERROR(train_beside(group, make, in_one, later), UsageError,
                   "no wrapper averages the gradient of later, which differs between the ranks");
      const auto by_hand = [&](torch::Tensor& other) { group.all_reduce(other.mutable_grad()); };
      EXPECT_NO_THROW(train_beside(group, make, in_one, tensor, by_hand));
      EXPECT_NO_THROW(train_beside(ProcessGroup::single(), make, in_one, tensor));
      torch::nn::Linear local(torch::nn::LinearOptions(3, 1).bias(false));
      const Reducer alone(*local, ProcessGroup::single());  // weights of this rank alone
      const auto of_one = [&](auto& /*net*/) { return local->weight; };
      EXPECT_NO_THROW(train_beside(group, make, in_one, of_one));
    }
  }
}

// Inputs of which the loss takes a gradient, kept or new ones in each step.
TEST_ON_RANKS(AveragedGradient, IsNotRequiredOfData, 2) {
  torch::nn::Linear net(2, 2);
  const Reducer reducer(*net, group);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  const auto points = torch::full({4, 2}, 1.0 * group.rank(), torch::requires_grad());
  for (int step = 0; step < 5; ++step) {
    const auto fresh = torch::full({4, 2}, 1.0 * group.rank() + step, torch::requires_grad());
    EXPECT_NO_THROW(net(points + fresh).square().sum().backward());
    optimizer.step();
  }
}

}  // namespace
}  // namespace ladder
