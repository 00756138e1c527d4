// SPDX-License-Identifier: Apache-2.0
#include "ladder/exact/exact_data_parallel.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "ladder/amp/autocast.h"
#include "ladder/core/error.h"
#include "ladder/kernels/fixed_point.h"
#include "ladder/nn/batch_norm.h"
#include "ladder/nn/dropout.h"
#include "ladder/nn/model.h"
#include "ladder/nn/state_dict.h"
#include "ladder/optim/adam.h"
#include "ladder/parallel/convert_sync_batchnorm.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "ladder/parallel/replica_check.h"
#include "mnist/networks.h"
#include "tests/support/exact.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/replicas.h"
#include "tests/support/small_modules.h"
#include "tests/support/small_net.h"
#include "tests/support/training.h"
#include "tests/support/two_inputs.h"

namespace ladder {
namespace {

using MakeModel = std::function<std::shared_ptr<Model>()>;

const MakeModel kSmallNet = [] { return small_net(); };

class ExactWorld : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(OfRanks, ExactWorld, testing::Values(1, 2, 3));

// With LibTorch's own BatchNorm, which keeps the running statistics for its backward.
Recipe reference_convnet() { return Recipe({.name = "convnet", .math = Math::kReference}); }

// Batches of five micro-batches, of four of which one is short, and of one: with two ranks and more
// some have none.
constexpr std::int64_t kSizes[] = {20, 14, 3, 16};

// The state after a step with each batch, and the loss of each, added over the ranks.
torch::Tensor trained_state(const MakeModel& make_model, const Recipe& recipe,
                            const ProcessGroup& group, int threads = 1) {
  const Threads these(threads);
  const auto model = exact(make_model(), group);
  AdamW optimizer(model->parameters(), {.lr = 0.01});
  auto losses = torch::zeros({std::ssize(kSizes)}, torch::kDouble);
  for (std::int64_t step = 0; step < std::ssize(kSizes); ++step) {
    const auto whole = random_batch(kSizes[step], static_cast<std::uint64_t>(step + 1));
    model->zero_grad();
    const auto loss = loss_of(*model, recipe, exact_slice_of(whole, group));
    loss.backward();
    losses[step] = loss.detach();
    optimizer.step();
  }
  group.all_reduce(losses);
  return torch::cat({flat_state(*model), losses});
}

// On these ranks, with one thread and with two, and alone.
void expect_same_state_as_alone(const ProcessGroup& group, const MakeModel& make_model,
                                const Recipe& recipe) {
  const auto alone = trained_state(make_model, recipe, ProcessGroup::single());
  EXPECT_FALSE(torch::equal(alone.narrow(0, 0, 9), flat_state(*make_model()).narrow(0, 0, 9)));
  EXPECT_TRUE(alone.isfinite().all().item<bool>());
  for (const int threads : {1, 2}) {
    EXPECT_TRUE(torch::equal(trained_state(make_model, recipe, group, threads), alone))
        << threads << " threads";
  }
}

// In shared memory the ranks add integers too.
TEST_P(ExactWorld, EndsWithTheWeightsAndBuffersOfOneProcessOnAnyNumberOfThreads) {
  const auto check = [](const ProcessGroup& group) {
    expect_same_state_as_alone(group, kSmallNet, basicnet());
    if (group.backend() == "shm") return;
    for (const auto& recipe : {convnet(), reference_convnet()}) {
      expect_same_state_as_alone(group, [&] { return first_model(recipe); }, recipe);
    }
    const auto in_bf16 = [] {
      return std::make_shared<AutocastModel>(small_net(), torch::kBFloat16);
    };
    expect_same_state_as_alone(group, in_bf16, basicnet());
    EXPECT_FALSE(torch::equal(trained_state(in_bf16, basicnet(), ProcessGroup::single()),
                              trained_state(kSmallNet, basicnet(), ProcessGroup::single())));
  };
  for (const char* backend : {"gloo", "shm"}) run_ranks(GetParam(), check, {.backend = backend});
}

struct OddNet : Model {
  torch::Tensor forward(const Inputs& inputs) override {
    return linear->forward(inputs.only().flatten(1)).tanh();
  }
  std::shared_ptr<Model> new_like() const override { return new_like_of(*this); }

  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(784, 211));
};

// Parts of a tensor per thread would end in other places, and the rest of a vector at each end.
TEST_ALONE(ExactDataParallel, EndsWithTheWeightsOfOneThreadInLargeLayersOfOddSizes) {
  const auto weights = [](int threads) {
    const Threads these(threads);
    torch::manual_seed(4);
    const auto model = exact(std::make_shared<OddNet>(), ProcessGroup::single());
    AdamW optimizer(model->parameters(), {.lr = 0.01});
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      const auto batch = random_batch(8, static_cast<std::uint64_t>(step + 1));
      (model->forward(batch.inputs).square().sum() / 8.0).backward();
      optimizer.step();
    }
    return flat_weights(*model);
  };
  const auto expected = weights(1);
  for (const int threads : {2, 3}) EXPECT_TRUE(torch::equal(weights(threads), expected));
}

TEST_ON_RANKS(ExactDataParallel, HasTheGradientOfDistributedDataParallelAndOfOneProcess, 2) {
  for (const std::int64_t size : {16, 7, 2}) {
    const auto batch = random_batch(size);
    const auto model = exact(small_net(), group);
    run_backward(*model, basicnet(), exact_slice_of(batch, group));
    const auto gradient = flat_gradients(*model);
    expect_equal_on_all_ranks(gradient, group);
    const auto plain = wrapped(small_net(), group);
    run_backward(*plain, basicnet(), slice_of(batch, group.rank(), 2));
    EXPECT_LE(relative_difference(gradient, flat_gradients(*plain)), 1e-6) << size;
    EXPECT_LE(distance_from_one_process(*model, batch), 1e-6);
  }
}

// The statistics after one batch: the mean of those after each micro-batch alone.
TEST_ON_RANKS(ExactDataParallel, MovesRunningStatisticsByTheMeanOverTheMicroBatches, 2) {
  const auto batch = random_batch(11);
  const auto model = exact(first_model(convnet()), group);
  const auto before = flat(model->buffers());
  const auto loss = loss_of(*model, convnet(), exact_slice_of(batch, group));
  EXPECT_TRUE(torch::equal(flat(model->buffers()), before)) << "before backward";
  loss.backward();
  auto expected = torch::zeros_like(before);
  for (const std::int64_t begin : {0, 4, 8}) {
    const auto alone = first_model(convnet());
    alone->forward(batch.inputs.only().narrow(0, begin, begin == 8 ? 3 : 4));
    expected += flat(alone->buffers()) / 3.0;
  }
  EXPECT_LE(relative_difference(flat(model->buffers()), expected), 1e-6);
  EXPECT_EQ(model->buffers().at(2).item<std::int64_t>(), 1);  // num_batches_tracked
  require_equal_replicas(*model, group);
}

// A network of a BatchNorm in two places, and a buffer of which no sum is finite.
struct MaskedNet : Model {
  MaskedNet() { register_module("same_norm", norm); }
  torch::Tensor forward(const Inputs& inputs) override {
    return (linear->forward(norm->forward(inputs.only()).flatten(1)) + mask).softmax(1);
  }
  std::shared_ptr<Model> new_like() const override { return new_like_of(*this); }

  std::shared_ptr<BatchNormImpl> norm =
      register_module("norm", std::make_shared<BatchNormImpl>(BatchNormOptions{.features = 1}));
  torch::Tensor mask = register_buffer("mask", torch::tensor({0.0F, -INFINITY}));
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(784, 2));
};

TEST_ON_RANKS(ExactDataParallel, LeavesOtherBuffersAndMovesSharedOnesOnce, 2) {
  const auto network = std::make_shared<MaskedNet>();
  const auto model = exact(network, group);
  const auto slice = exact_slice_of(random_batch(8), group);
  (model->forward(slice.inputs).square().sum() / 8.0).backward();
  EXPECT_TRUE(torch::equal(network->mask, torch::tensor({0.0F, -INFINITY})));
  EXPECT_EQ(network->norm->num_batches_tracked.item<std::int64_t>(), 1);
}

// --- scale and size of the gradients ---

// The gradient of each rank's slice, with a loss that is multiplied before backward.
torch::Tensor scaled_gradient(const ProcessGroup& group, double scale, bool is_known = true) {
  ExactDataParallelOptions options{.micro_batch = 4};
  if (is_known) options.loss_scale = [scale] { return scale; };
  ExactDataParallel model(small_net(), group, options);
  const auto slice = exact_slice_of(random_batch(14), group);
  (loss_of(model, basicnet(), slice) * scale).backward();
  return flat_gradients(model);
}

void on_one_and_two_ranks(const std::function<void(const ProcessGroup&)>& check) {
  for (const int world : {1, 2}) run_ranks(world, check);
}

TEST(ExactDataParallel, DividesTheLossScaleOutBeforeItRounds) {
  on_one_and_two_ranks([](const ProcessGroup& group) {
    const auto plain = scaled_gradient(group, 1.0, /*is_known=*/false);
    EXPECT_TRUE(torch::equal(scaled_gradient(group, 65536.0), plain * 65536.0));
    EXPECT_FALSE(torch::equal(scaled_gradient(group, 65536.0, false), plain * 65536.0))
        << "otherwise the sums would not show it";
  });
}

// One weight per row: the gradient of weight i is the sum over its inputs.
class Factors : public Model {
 public:
  explicit Factors(std::int64_t size = 3)
      : weight(register_parameter("weight", torch::zeros({size}))) {}
  torch::Tensor forward(const Inputs& inputs) override { return inputs.only() * weight; }
  std::shared_ptr<Model> new_like() const override {
    return new_network_like(*this, weight.size(0));
  }
  torch::Tensor weight;
};

// The gradient if the largest number among the samples of all ranks is `extreme`.
torch::Tensor gradient_with(double extreme, const ProcessGroup& group, torch::ScalarType dtype) {
  const auto model = std::make_shared<Factors>();
  model->to(dtype);
  auto samples = torch::ones({2 * group.world_size(), 3}, dtype);
  samples[-1][2] = extreme;
  const auto part = samples.narrow(0, 2 * group.rank(), 2);
  exact(model, group, 1)->forward(part).sum().backward();
  return model->weight.grad();
}

// float64 goes by LibTorch's operations, with the same integers.
TEST(ExactDataParallel, GivesNanOnAllRanksForAGradientBeyondTheLimitOnOne) {
  on_one_and_two_ranks([](const ProcessGroup& group) {
    const double others = 2 * group.world_size() - 1;
    for (const auto dtype : {torch::kFloat, torch::kDouble}) {
      EXPECT_TRUE(torch::equal(gradient_with(64.0, group, dtype),
                               torch::tensor({others + 1, others + 1, others + 64}, dtype)));
      for (const double bad : {64.001, -65.0, std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::quiet_NaN()}) {
        EXPECT_TRUE(gradient_with(bad, group, dtype).isnan().all().item<bool>()) << bad << dtype;
      }
    }
  });
}

TEST(ExactDataParallel, RefusesMoreMicroBatchesThanItsIntegersHold) {
  on_one_and_two_ranks([](const ProcessGroup& group) {
    const auto model = std::make_shared<Factors>(1);
    const auto wrapper = exact(model, group, 1);
    const auto backward = [&](std::int64_t rows) {
      const bool last = group.rank() + 1 == group.world_size();
      wrapper->forward(torch::ones({last ? rows : 0, 1})).sum().backward();
    };
    const auto most = FixedPoint::kMaxAddends;
    backward(most);
    EXPECT_EQ(model->weight.grad().item<float>(), static_cast<float>(most));
    EXPECT_ERROR(backward(most + 1), UsageError,
                 "hint: use larger micro-batches, or fewer accumulation steps");
    model->zero_grad();
    backward(2);  // all is as before
    EXPECT_EQ(model->weight.grad().item<float>(), 2.0F);
  });
}

// --- gradient accumulation ---

TEST(ExactDataParallel, AccumulatesAsOneBatchOfTheSameMicroBatches) {
  on_one_and_two_ranks([](const ProcessGroup& group) {
    const auto large = random_batch(16);
    const auto whole = exact(first_model(convnet()), group);
    run_backward(*whole, convnet(), exact_slice_of(large, group));
    const auto model = exact(first_model(convnet()), group);
    const auto backward = [&](std::int64_t begin, std::int64_t count) {
      auto slice = exact_slice_of(part_of(large, begin, count, 1), group);
      slice.global_size = 16;
      loss_of(*model, convnet(), slice).backward();
    };
    {
      const auto pause = model->no_sync();
      backward(0, 8);
      backward(8, 4);
    }
    for (const auto& parameter : model->parameters()) EXPECT_FALSE(parameter.grad().defined());
    EXPECT_TRUE(torch::equal(flat(model->buffers()), flat(first_model(convnet())->buffers())));
    const auto none = model->no_sync(false);
    backward(12, 4);
    EXPECT_TRUE(torch::equal(flat_gradients(*model), flat_gradients(*whole)));
    EXPECT_TRUE(torch::equal(flat_state(*model), flat_state(*whole)));
  });
}

TEST_ON_RANKS(ExactDataParallel, ForgetsWhatItHasAccumulated, 2) {
  const auto slice = exact_slice_of(random_batch(12), group);
  const auto other = exact_slice_of(random_batch(5, 2), group);
  const auto expected = exact(small_net(), group);
  run_backward(*expected, basicnet(), slice);
  const auto model = exact(small_net(), group);
  const auto accumulate = [&] {
    const auto pause = model->no_sync();
    loss_of(*model, basicnet(), other).backward();
  };
  accumulate();
  model->forget();
  run_backward(*model, basicnet(), slice);
  EXPECT_TRUE(torch::equal(flat_gradients(*model), flat_gradients(*expected)));
  accumulate();
  loss_of(*model, basicnet(), other).backward();
  model->zero_grad();
  loss_of(*model, basicnet(), slice).backward();  // nothing is left of the step before
  EXPECT_TRUE(torch::equal(flat_gradients(*model), flat_gradients(*expected)));
}

// --- inputs and parameters of other kinds ---

// Weight gradients, and those of this rank's images.
std::pair<torch::Tensor, torch::Tensor> two_input_gradients(Model& model, std::int64_t begin,
                                                            std::int64_t size,
                                                            std::int64_t micro_batch) {
  const auto parameters = model.parameters();
  auto batch = two_input_batch(begin, size);
  batch.micro_batch = micro_batch;
  const auto images = batch.inputs.at("image").to(parameters.front().scalar_type());
  batch.inputs.set("image", images.detach().requires_grad_());
  two_input_loss(model, batch).backward();
  std::vector<torch::Tensor> rows;
  for (const auto& parameter : parameters) rows.push_back(parameter.grad().flatten());
  return {torch::cat(rows), batch.inputs.at("image").grad()};
}

// float64 goes by LibTorch's operations, with the same integers.
TEST_ON_RANKS(ExactDataParallel, TakesSeveralInputsAndGivesGradientsToThoseThatNeedThem, 2) {
  for (const auto dtype : {torch::kFloat, torch::kDouble}) {
    const auto network = [&] {
      auto made = std::make_shared<TwoInputNet>();
      made->to(dtype);
      return made;
    };
    const auto [weights, images] = two_input_gradients(*network(), 0, 7, 0);
    const auto alone = exact(network(), ProcessGroup::single(), 2);
    const auto [exact_weights, exact_images] = two_input_gradients(*alone, 0, 7, 2);
    EXPECT_EQ(exact_weights.scalar_type(), dtype);
    EXPECT_TRUE(torch::equal(exact_weights * 0x1p44, (exact_weights * 0x1p44).round()));
    EXPECT_LE(relative_difference(exact_weights, weights), 1e-6);
    EXPECT_LE(relative_difference(exact_images, images), 1e-6);

    for (const std::int64_t of_rank_0 : {4, 7}) {  // with 7 rank 1 has no sample
      const std::int64_t begin = group.rank() == 0 ? 0 : of_rank_0;
      const std::int64_t size = group.rank() == 0 ? of_rank_0 : 7 - of_rank_0;
      const auto model = exact(network(), group, 2);
      const auto [rank_weights, rank_images] = two_input_gradients(*model, begin, size, 2);
      EXPECT_TRUE(torch::equal(rank_weights, exact_weights));
      EXPECT_EQ(rank_images.defined(), size > 0);
      if (size > 0) {
        EXPECT_TRUE(torch::equal(rank_images, exact_images.narrow(0, begin, size)));
      }
    }
  }
}

// A layer that a micro-batch uses if its first number is positive, one that none uses, and one that
// is not trained.
struct Choosy : Model {
  Choosy() {
    const RngStateGuard same_numbers_after;
    torch::manual_seed(5);
    always = register_module("always", torch::nn::Linear(2, 1));
    sometimes = register_module("sometimes", torch::nn::Linear(2, 1));
    never = register_module("never", torch::nn::Linear(2, 1));
    frozen = register_module("frozen", torch::nn::Linear(2, 2));
    for (auto& parameter : frozen->parameters()) parameter.set_requires_grad(false);
  }
  torch::Tensor forward(const Inputs& inputs) override {
    const auto x = frozen(inputs.only());
    const bool both = inputs.rows() > 0 && inputs.only()[0][0].item<float>() > 0.0F;
    return both ? always(x) * sometimes(x) : always(x);
  }
  std::shared_ptr<Model> new_like() const override { return new_like_of(*this); }

  torch::nn::Linear always = nullptr;
  torch::nn::Linear sometimes = nullptr;
  torch::nn::Linear never = nullptr;
  torch::nn::Linear frozen = nullptr;
};

TEST_ON_RANKS(ExactDataParallel, GivesNoGradientToParametersThatNoRankUsesOrTrains, 2) {
  for (const ProcessGroup& ranks : {group, ProcessGroup::single()}) {
    const auto network = std::make_shared<Choosy>();
    exact(network, ranks, 1)->forward(-torch::ones({3, 2})).sum().backward();
    EXPECT_TRUE(network->always->weight.grad().defined());
    for (const auto& unused : {network->sometimes, network->never, network->frozen}) {
      for (const auto& parameter : unused->parameters()) {
        EXPECT_FALSE(parameter.grad().defined());
      }
    }
  }
}

TEST_ON_RANKS(ExactDataParallel, GivesAllRanksTheGradientOfAParameterThatOneUses, 2) {
  const auto samples = torch::tensor({-1.0F, 2.0F, 3.0F, -4.0F, -5.0F, 6.0F}).view({3, 2});
  Choosy plain;  // sample by sample, as the micro-batches
  for (std::int64_t i = 0; i < 3; ++i) plain.forward(samples.narrow(0, i, 1)).sum().backward();
  const auto network = std::make_shared<Choosy>();
  const auto mine = group.rank() == 0 ? samples.narrow(0, 0, 2) : samples.narrow(0, 2, 1);
  exact(network, group, 1)->forward(mine).sum().backward();
  for (const auto& [got, expected] :
       {std::pair(network->sometimes, plain.sometimes), std::pair(network->always, plain.always)}) {
    EXPECT_LE(relative_difference(flat_gradients(*got), flat_gradients(*expected)), 1e-6);
    expect_equal_on_all_ranks(flat_gradients(*got), group);
  }
}

// --- the wrapper ---

// Writes down what its replicas see.
class Watched : public Model {
 public:
  explicit Watched(std::shared_ptr<Watched> chief = nullptr)
      : linear(register_module("linear", torch::nn::Linear(784, 10))), chief_(std::move(chief)) {}

  torch::Tensor forward(const Inputs& inputs) override {
    Watched& writer = chief_ == nullptr ? *this : *chief_;
    const std::lock_guard lock(writer.mutex);
    writer.sizes.insert(inputs.rows());
    writer.teams.insert(at::get_num_threads());
    writer.threads.insert(std::this_thread::get_id());
    writer.modes.insert(is_training());
    return linear(inputs.only().flatten(1));
  }
  std::shared_ptr<Model> new_like() const override {
    const RngStateGuard keep;
    auto self = std::const_pointer_cast<torch::nn::Module>(shared_from_this());
    auto copy = std::make_shared<Watched>(std::dynamic_pointer_cast<Watched>(self));
    copy_values(*this, *copy);
    return copy;
  }

  torch::nn::Linear linear;
  std::mutex mutex;
  std::multiset<std::int64_t> sizes;
  std::set<int> teams;
  std::set<std::thread::id> threads;
  std::set<bool> modes;

 private:
  std::shared_ptr<Watched> chief_;
};

TEST_ALONE(ExactDataParallel, ComputesMicroBatchesOnThreadsThatUseOneThreadEach) {
  for (const int threads : {1, 2}) {
    const Threads these(threads);
    const auto watched = std::make_shared<Watched>();
    const auto model = exact(watched, ProcessGroup::single());
    for (int step = 0; step < 20; ++step) {
      model->forward(random_batch(10).inputs).sum().backward();
      EXPECT_EQ(at::get_num_threads(), threads);
      const std::multiset<std::int64_t> sizes = {2, 4, 4};
      EXPECT_TRUE(step > 0 || watched->sizes == sizes);
    }
    EXPECT_EQ(watched->teams, std::set<int>{1});
    EXPECT_EQ(std::ssize(watched->threads), threads);
    EXPECT_EQ(watched->modes, std::set<bool>{true});
  }
}

TEST_ALONE(ExactDataParallel, EvaluatesEachMicroBatchByItselfAndLeavesTheStatistics) {
  const auto model = exact(first_model(convnet()), ProcessGroup::single());
  run_backward(*model, convnet(), exact_slice_of(random_batch(8), ProcessGroup::single()));
  const auto state = flat_state(*model);
  const torch::NoGradGuard no_grad;
  const auto images = random_batch(22, 5).inputs.only();
  for (const bool training : {false, true}) {
    model->train(training);
    const auto whole = model->forward(images);
    EXPECT_EQ(whole.size(0), 22);
    EXPECT_FALSE(whole.requires_grad());
    for (const std::int64_t cut : {4, 12, 20}) {
      EXPECT_TRUE(torch::equal(torch::cat({model->forward(images.narrow(0, 0, cut)),
                                           model->forward(images.narrow(0, cut, 22 - cut))}),
                               whole))
          << cut;
    }
    EXPECT_TRUE(torch::equal(flat_state(*model), state));
  }
  model->eval();
  const auto plain = model->new_like();
  EXPECT_LE(relative_difference(model->forward(images), plain->forward(images)), 1e-6);
  EXPECT_EQ(model->forward(images.narrow(0, 0, 0)).sizes(), (std::vector<std::int64_t>{0, 10}));
}

TEST_ON_RANKS(ExactDataParallel, BeginsWithTheWeightsAndBuffersOfRank0, 2) {
  torch::manual_seed(static_cast<std::uint64_t>(group.rank()));
  const auto network = convnet().make_model();
  const torch::NoGradGuard no_grad;
  for (auto& buffer : network->buffers()) buffer.add_(group.rank());
  EXPECT_FALSE(equal_on_all_ranks(flat_state(*network), group));
  const auto model = exact(network, group);
  expect_equal_on_all_ranks(flat_state(*model), group);
}

TEST_ON_RANKS(ExactDataParallel, FindsAReplicaThatWasChanged, 2) {
  const auto network = small_net();
  ExactDataParallel model(network, group, {.micro_batch = 4, .check_replicas = 2});
  const auto slice = exact_slice_of(random_batch(8), group);
  run_backward(model, basicnet(), slice);
  const torch::NoGradGuard no_grad;
  if (group.rank() == 1) network->parameters().front()[0][0] += 1e-3;
  const torch::AutoGradMode grad_mode(true);
  run_backward(model, basicnet(), slice);  // every second forward
  EXPECT_ERROR(run_backward(model, basicnet(), slice), DistributedError, "on rank 1");
}

// Which would average the exact gradient again, and on three ranks round it.
TEST_ON_RANKS(ExactDataParallel, RefusesAParameterThatAnotherWrapperHas, 2) {
  const auto network = small_net();
  const DistributedDataParallel wrapper(network, group);
  EXPECT_ERROR(exact(network, group), UsageError, "another wrapper has ");
}

TEST_ON_RANKS(ExactDataParallel, MayBeGoneWhenItsBackwardRuns, 2) {
  const auto network = small_net();
  auto model = exact(network, group);
  const auto batch = random_batch(10);
  const auto loss = loss_of(*model, basicnet(), exact_slice_of(batch, group));
  model.reset();
  loss.backward();
  EXPECT_LE(distance_from_one_process(*network, batch), 1e-6);
}

TEST_ALONE(ExactDataParallel, LeavesTheStatisticsOfALayerInEvaluation) {
  const auto model = exact(first_model(convnet()), ProcessGroup::single());
  auto& frozen = *model->named_modules()["module.layer1.1"];
  frozen.eval();
  const auto before = flat(frozen.buffers());
  const auto others = flat_state(*model);
  const auto slice = exact_slice_of(random_batch(4), ProcessGroup::single());
  loss_of(*model, convnet(), slice).backward();
  EXPECT_TRUE(torch::equal(flat(frozen.buffers()), before));
  EXPECT_FALSE(torch::equal(flat_state(*model), others)) << "of the other layer";
}

TEST_ALONE(ExactDataParallel, AllowsTwoForwardsBeforeTheirBackwardsAndRunsEachOnce) {
  const auto recipe = reference_convnet();
  const auto model = exact(first_model(recipe), ProcessGroup::single());
  const auto first = loss_of(*model, recipe, random_batch(8, 1));
  const auto second = loss_of(*model, recipe, random_batch(8, 2));
  second.backward({}, /*retain_graph=*/true);
  EXPECT_NO_THROW(first.backward());
  EXPECT_EQ(model->buffers().at(2).item<std::int64_t>(), 2);  // num_batches_tracked
  EXPECT_THROW(second.backward(), std::exception);
}

TEST_ALONE(ExactDataParallel, SeesWeightsThatAreLoadedOrExchanged) {
  const auto network = first_model(convnet());
  const auto model = exact(network, ProcessGroup::single());
  expect_sees_weights_that_are_loaded_or_exchanged(*model, *network);
}

TEST_ALONE(ExactDataParallel, NamesTensorsAsDistributedDataParallelAndGivesACopyWithoutItself) {
  const auto network = first_model(convnet());
  const auto model = exact(network, ProcessGroup::single(), 5);
  expect_names_and_copy_of_wrapper(*model, *network);
  EXPECT_EQ(&model->module(), network.get());
  EXPECT_EQ(model->micro_batch(), 5);
}

TEST_ALONE(ExactDataParallel, RefusesModelsAndOptionsThatItCannotUse) {
  const auto single = ProcessGroup::single();
  const auto with_sync_batchnorm = first_model(convnet());
  convert_sync_batchnorm(*with_sync_batchnorm, single);
  EXPECT_ERROR(exact(with_sync_batchnorm, single), UsageError,
               "ExactDataParallel: SyncBatchNorm, which adds floats over the ranks");
  EXPECT_ERROR(exact(std::make_shared<OnTwoDevices>(), single), UsageError,
               "there is on meta, expected cpu");
  EXPECT_ERROR(exact(small_net(), single, 0), UsageError, "micro_batch: expected 1 to 10000000");
  EXPECT_ERROR(ExactDataParallel(small_net(), single, {.threads = -1}), UsageError,
               "threads: expected a number >= 0, got -1");
  const auto network = small_net();
  const auto model = exact(network, single);
  auto parameter = network->parameters().front();
  parameter.set_requires_grad(false);
  EXPECT_ERROR(model->forward(torch::ones({2, 3})), UsageError,
               "requires_grad of a parameter changed after construction");
}

TEST_ALONE(ExactDataParallel, RefusesMasksThatAreDrawnInTurn) {
  const auto with = [](const std::shared_ptr<torch::nn::Module>& layer) {
    const auto network = small_net();
    network->register_module("layer", layer);
    return exact(network, ProcessGroup::single());
  };
  const char* refusal = "ExactDataParallel: Dropout with masks of PyTorch's generator";
  DropoutOptions options = {.p = 0.5, .layer = 9};
  EXPECT_NO_THROW(with(std::make_shared<Dropout>(options)));
  options.masks = DropoutMasks::kByGenerator;
  EXPECT_ERROR(with(std::make_shared<Dropout>(options)), UsageError, refusal);
  EXPECT_ERROR(with(std::make_shared<torch::nn::DropoutImpl>(0.5)), UsageError, refusal);
  EXPECT_ERROR(with(std::make_shared<torch::nn::AlphaDropoutImpl>(0.5)), UsageError, refusal);
  EXPECT_NO_THROW(with(std::make_shared<torch::nn::DropoutImpl>(0.0)));
}

}  // namespace
}  // namespace ladder
