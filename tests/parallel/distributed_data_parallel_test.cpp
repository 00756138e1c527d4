// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/distributed_data_parallel.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/nn/model.h"
#include "ladder/nn/state_dict.h"
#include "ladder/optim/adam.h"
#include "ladder/optim/lr_scheduler.h"
#include "ladder/optim/sgd.h"
#include "ladder/parallel/replica_check.h"
#include "mnist/networks.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/replicas.h"
#include "tests/support/small_modules.h"
#include "tests/support/small_net.h"
#include "tests/support/training.h"
#include "tests/support/two_inputs.h"

namespace ladder {
namespace {

using Optimizer = std::unique_ptr<torch::optim::Optimizer>;
using MakeOptimizer = std::function<Optimizer(std::vector<torch::Tensor>)>;

class World : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(OfRanks, World, testing::Values(2, 3));

// Slices of one size, of two sizes, and an empty one on the last rank. Dropout included.
TEST_P(World, HasTheGradientOfOneProcess) {
  run_ranks(GetParam(), [](const ProcessGroup& group) {
    for (const std::int64_t size : {12, 7, group.world_size() - 1}) {
      SCOPED_TRACE(size);
      const auto batch = random_batch(size);
      const auto model = wrapped(small_net(), group);
      run_backward(*model, basicnet(), slice_of(batch, group.rank(), group.world_size()));
      EXPECT_LE(distance_from_one_process(*model, batch), 1e-6);
      expect_equal_on_all_ranks(flat_gradients(*model), group);
    }
  });
}

void expect_run_like_one_process(const ProcessGroup& group, const MakeOptimizer& make_optimizer,
                                 double tolerance) {
  constexpr int kSteps = 50;
  const auto whole = [](int step) { return random_batch(5, static_cast<std::uint64_t>(step + 1)); };
  const auto slice = [&](int step) {
    return slice_of(whole(step), group.rank(), group.world_size());
  };
  const auto model = wrapped(small_net(), group);
  train(*model, *make_optimizer(model->parameters()), basicnet(), kSteps, slice);
  require_equal_replicas(*model, group);
  expect_equal_on_all_ranks(flat_weights(*model), group);
  if (group.rank() != 0) return;
  const auto alone = small_net();
  train(*alone, *make_optimizer(alone->parameters()), basicnet(), kSteps, whole);
  EXPECT_LE(relative_difference(flat_weights(*model), flat_weights(*alone)), tolerance);
}

TEST_P(World, EndsNearOneProcessAfter50Steps) {
  run_ranks(GetParam(), [](const ProcessGroup& group) {
    const auto sgd = [](std::vector<torch::Tensor> parameters) {
      return std::make_unique<SGD>(std::move(parameters), SgdOptions{.lr = 0.01});
    };
    const auto adamw = [](std::vector<torch::Tensor> parameters) {
      return std::make_unique<AdamW>(std::move(parameters));
    };
    if (group.world_size() == 2) expect_run_like_one_process(group, sgd, 1e-5);
    if (group.world_size() == 3) expect_run_like_one_process(group, adamw, 2e-3);
  });
}

// With BatchNorm too: nothing is left of the wrapper.
TEST_ON_RANKS(DistributedDataParallel, OnOneRankIsBitEqualToNoWrapper, 1) {
  for (const Recipe& recipe : {basicnet(), convnet()}) {
    const auto network = [&] {
      return recipe.name() == "convnet" ? first_model(recipe) : small_net();
    };
    const auto hash_of_run = [&](const std::shared_ptr<Model>& model) {
      const auto optimizer = recipe.make_optimizer(model->parameters());
      train(*model, *optimizer, recipe, 4,
            [](int step) { return random_batch(6, static_cast<std::uint64_t>(step)); });
      model->eval();
      return weights_sha256(state_dict(*model));
    };
    const auto plain = hash_of_run(network());
    EXPECT_EQ(hash_of_run(wrapped(network(), ProcessGroup::single())), plain);
    EXPECT_EQ(hash_of_run(wrapped(network(), group)), plain);
  }
}

TEST_ON_RANKS(DistributedDataParallel, BeginsWithTheWeightsAndBuffersOfRank0, 3) {
  torch::manual_seed(static_cast<std::uint64_t>(group.rank()));
  const auto model = convnet().make_model();
  const torch::NoGradGuard no_grad;
  for (auto& buffer : model->buffers()) buffer.add_(group.rank());
  auto first = flat_weights(*model);
  auto first_buffers = flat(model->buffers());
  EXPECT_FALSE(equal_on_all_ranks(first, group));
  group.broadcast(first);
  group.broadcast(first_buffers);
  const auto ddp = wrapped(model, group);
  EXPECT_TRUE(torch::equal(flat_weights(*ddp), first));
  EXPECT_TRUE(torch::equal(flat(ddp->buffers()), first_buffers));
}

TEST_ON_RANKS(DistributedDataParallel, AveragesAlsoIfTheNetworkItselfIsCalled, 2) {
  const auto batch = slice_of(random_batch(4), group.rank(), 2);
  const auto model = wrapped(small_net(), group);
  run_backward(*model, basicnet(), batch);
  const auto expected = flat_gradients(*model);
  for (int step = 0; step < 2; ++step) {
    const auto direct = wrapped(small_net(), group);
    if (step == 1) run_backward(*direct, basicnet(), batch);
    direct->zero_grad();
    loss_of(direct->module(), basicnet(), batch).backward();
    EXPECT_TRUE(torch::equal(flat_gradients(*direct), expected));
  }
}

TEST_ON_RANKS(DistributedDataParallel, AveragesEachBackwardOfOneForward, 2) {
  const auto model = wrapped(small_net(), group);
  const auto loss = loss_of(*model, basicnet(), slice_of(random_batch(4), group.rank(), 2));
  loss.backward({}, /*retain_graph=*/true);
  const auto once = flat_gradients(*model).clone();
  loss.backward();
  EXPECT_LE(relative_difference(flat_gradients(*model), once * 2), 1e-6);
  expect_equal_on_all_ranks(flat_gradients(*model), group);
}

TEST_ON_RANKS(DistributedDataParallel, SendsNothingInEvaluation, 2) {
  const auto model = wrapped(first_model(convnet()), group, {.reducer = {.check_replicas = 1}});
  run_backward(*model, convnet(), slice_of(random_batch(8), group.rank(), 2));
  model->eval();
  auto seen = torch::zeros({1});
  {
    const torch::NoGradGuard no_grad;
    for (int batch = 0; batch < (group.rank() == 0 ? 3 : 1); ++batch) {
      seen += model->forward(random_batch(5).inputs.only()).size(0);
    }
  }
  group.all_reduce(seen);
  EXPECT_EQ(seen.item<float>(), 20.0F);
  model->train();
  run_backward(*model, convnet(), slice_of(random_batch(8), group.rank(), 2));
  expect_equal_on_all_ranks(flat_gradients(*model), group);
}

TEST_ON_RANKS(DistributedDataParallel, SendsRank0sBuffersAtEvalAndTrainingForwards, 3) {
  const auto model = wrapped(first_model(convnet()), group);
  const auto slice = slice_of(random_batch(12), group.rank(), 3);
  run_backward(*model, convnet(), slice);
  auto of_rank_0 = flat(model->buffers());
  EXPECT_FALSE(equal_on_all_ranks(of_rank_0, group));
  group.broadcast(of_rank_0);

  const auto alone = first_model(convnet());  // from rank 0's buffers, with my images
  copy_values(model->module(), *alone);
  std::int64_t begin = 0;
  for (auto& buffer : alone->buffers()) {
    const torch::NoGradGuard no_grad;
    buffer.copy_(of_rank_0.narrow(0, begin, buffer.numel()).view(buffer.sizes()));
    begin += buffer.numel();
  }
  alone->forward(slice.inputs);
  run_backward(*model, convnet(), slice);
  EXPECT_TRUE(torch::equal(flat(model->buffers()), flat(alone->buffers())));

  auto again = flat(model->buffers());
  group.broadcast(again);
  model->eval();
  EXPECT_TRUE(torch::equal(flat(model->buffers()), again));
  EXPECT_EQ(model->buffers().at(2).item<std::int64_t>(), 2);  // num_batches_tracked
  require_equal_replicas(*model, group);
}

// Autograd has saved the running statistics, which training does not read again.
TEST_ON_RANKS(DistributedDataParallel, SendsBuffersBetweenAForwardAndItsBackward, 2) {
  const auto model = wrapped(first_model(convnet()), group);
  const auto slice = slice_of(random_batch(8), group.rank(), 2);
  run_backward(*model, convnet(), slice);
  const auto expected = flat_gradients(*model);
  model->zero_grad();
  const auto loss = loss_of(*model, convnet(), slice);
  model->eval();
  EXPECT_NO_THROW(loss.backward());
  EXPECT_LE(relative_difference(flat_gradients(*model), expected), 1e-6);
}

TEST_ON_RANKS(DistributedDataParallel, LeavesBuffersAloneWithoutBroadcastBuffers, 2) {
  const auto model =
      wrapped(first_model(convnet()), group, {.reducer = {.broadcast_buffers = false}});
  const auto alone = first_model(convnet());
  const auto slice = slice_of(random_batch(8), group.rank(), 2);
  for (int step = 0; step < 2; ++step) {
    run_backward(*model, convnet(), slice);
    alone->forward(slice.inputs);
  }
  model->eval();
  EXPECT_TRUE(torch::equal(flat(model->buffers()), flat(alone->buffers())));
  EXPECT_FALSE(equal_on_all_ranks(flat(model->buffers()), group));
}

TEST_ON_RANKS(DistributedDataParallel, TakesSeveralInputs, 2) {
  TwoInputNet alone;
  two_input_loss(alone, two_input_batch()).backward();
  const auto ddp = wrapped(std::make_shared<TwoInputNet>(), group);
  const bool first = group.rank() == 0;
  two_input_loss(*ddp, two_input_batch(first ? 0 : 4, first ? 4 : 3, 2)).backward();
  EXPECT_LE(relative_difference(flat_gradients(*ddp), flat_gradients(alone)), 1e-6);
}

TEST_ON_RANKS(DistributedDataParallel, WantsTheModelOnTheOneDeviceThatIsNamed, 1) {
  const auto with_devices = [&](const std::vector<torch::Device>& devices) {
    return wrapped(small_net(), group, {.device_ids = devices});
  };
  EXPECT_NO_THROW(with_devices({}));
  EXPECT_NO_THROW(with_devices({torch::kCPU}));
  EXPECT_ERROR(with_devices({torch::kCPU, torch::kCPU}), UsageError,
               "device_ids: expected one device per process, got 2");
  EXPECT_ERROR(with_devices({torch::Device("cuda:0")}), UsageError,
               "linear.weight is on cpu, expected cuda:0");
  EXPECT_ERROR(wrapped(std::make_shared<OnTwoDevices>(), group), UsageError,
               "there is on meta, expected cpu");
  const auto images = random_batch(2).inputs.only();
  EXPECT_TRUE(wrapped(first_model(convnet()), group)->forward(images).is_cpu());
  const DistributedDataParallelOptions to_meta = {.output_device = torch::Device("meta")};
  EXPECT_TRUE(wrapped(first_model(convnet()), group, to_meta)->forward(images).is_meta());
}

TEST_ON_RANKS(DistributedDataParallel, NamesTensorsAsPythonAndLeavesAPlainModelBehind, 2) {
  const auto slice = slice_of(random_batch(4), group.rank(), 2);
  const auto expected = gradient_of_one_process(small_net(), basicnet(), slice);
  const auto model = small_net();
  std::shared_ptr<Model> copy;
  {
    const auto ddp = wrapped(model, group);
    expect_names_and_copy_of_wrapper(*ddp, *model);
    copy = ddp->new_like();
    run_backward(*ddp, basicnet(), slice);
    EXPECT_TRUE(equal_on_all_ranks(flat_gradients(*model), group));
  }
  EXPECT_FALSE(equal_on_all_ranks(expected, group));
  for (const auto& plain : {copy, model}) {  // no hook came along or stayed
    run_backward(*plain, basicnet(), slice);
    EXPECT_TRUE(torch::equal(flat_gradients(*plain), expected));
  }
}

TEST_ON_RANKS(DistributedDataParallel, ServesTwoModelsSideBySide, 2) {
  const auto batch = random_batch(4);
  const auto slice = slice_of(batch, group.rank(), 2);
  const auto first = wrapped(small_net(), group);
  const auto second = wrapped(first_model(convnet()), group);
  const auto first_loss = loss_of(*first, basicnet(), slice);
  run_backward(*second, convnet(), slice);
  first_loss.backward();
  EXPECT_LE(distance_from_one_process(*first, batch), 1e-6);
  EXPECT_TRUE(equal_on_all_ranks(flat_gradients(*second), group));
}

TEST_ON_RANKS(DistributedDataParallel, KeepsTheLearningRateEqualIfEveryRankStepsItsScheduler, 2) {
  const auto model = wrapped(small_net(), group);
  SGD optimizer(model->parameters(), {.lr = 0.5});
  StepLR scheduler(optimizer, {.step_size = 2, .gamma = 0.5});
  for (int epoch = 0; epoch < 4; ++epoch) {
    train(*model, optimizer, basicnet(), 1,
          [&](int /*step*/) { return slice_of(random_batch(4), group.rank(), 2); });
    scheduler.step();
  }
  EXPECT_EQ(scheduler.last_lr(), std::vector<double>{0.125});
  expect_equal_on_all_ranks(torch::tensor(scheduler.last_lr(), torch::kFloat64), group);
  require_equal_parameters(*model, group);
}

}  // namespace
}  // namespace ladder
