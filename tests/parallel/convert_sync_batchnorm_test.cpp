// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/convert_sync_batchnorm.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ladder/amp/autocast.h"
#include "ladder/core/error.h"
#include "ladder/nn/batch_norm.h"
#include "ladder/nn/state_dict.h"
#include "ladder/parallel/data_parallel.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "ladder/parallel/fully_sharded_data_parallel.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/relative_difference.h"
#include "tests/support/replicas.h"
#include "tests/support/training.h"

namespace ladder {
namespace {

constexpr const char* kWrapped =
    "convert_sync_batchnorm: the model is wrapped already; "
    "hint: convert the network first, then wrap it";

std::map<std::string, void*> tensors_of(const torch::nn::Module& module) {
  std::map<std::string, void*> tensors;
  for (const auto& [name, tensor] : state_dict(module)) tensors[name] = tensor.data_ptr();
  return tensors;
}

TEST_ALONE(ConvertSyncBatchnorm, SaysHowManyItConvertedAndKeepsTheTensorsAndTheirNames) {
  const auto group = ProcessGroup::single();
  const auto network = first_model(convnet());
  const auto before = tensors_of(*network);
  EXPECT_TRUE(before.contains("layer1.1.running_mean"));
  EXPECT_EQ(convert_sync_batchnorm(*network, group), 2);
  EXPECT_EQ(convert_sync_batchnorm(*network, group), 2);  // again does no harm
  EXPECT_EQ(tensors_of(*network), before);
  EXPECT_EQ(convert_sync_batchnorm(*first_model(basicnet()), group), 0);
  BatchNorm layer(BatchNormOptions{.features = 3});
  EXPECT_EQ(convert_sync_batchnorm(*layer, group), 1);
  AutocastModel mixed(first_model(convnet()), torch::kBFloat16);
  EXPECT_EQ(convert_sync_batchnorm(mixed, group), 2);
  torch::nn::ModuleList nested(torch::nn::ModuleList(layer, torch::nn::Linear(3, 3)), layer);
  EXPECT_EQ(convert_sync_batchnorm(*nested, group), 2);
}

TEST_ALONE(ConvertSyncBatchnorm, RefusesAModelThatIsWrappedAlready) {
  const auto group = ProcessGroup::single();
  const auto ddp = wrapped(first_model(convnet()), group);
  EXPECT_ERROR(convert_sync_batchnorm(*ddp, group), UsageError, kWrapped);
  DataParallel replicas(first_model(convnet()), {.device_ids = {torch::kCPU, torch::kCPU}});
  EXPECT_ERROR(convert_sync_batchnorm(replicas, group), UsageError, kWrapped);
  AutocastModel around(ddp, torch::kBFloat16);
  EXPECT_ERROR(convert_sync_batchnorm(around, group), UsageError, kWrapped);
  FullyShardedDataParallel sharded(first_model(convnet()), group);
  EXPECT_ERROR(convert_sync_batchnorm(sharded, group), UsageError, kWrapped);
  EXPECT_EQ(convert_sync_batchnorm(ddp->module(), group), 2);  // the network in it is none
}

// Forward, backward and update of `layer` with this rank's part of `images`.
template <typename Layer>
std::vector<torch::Tensor> pass(Layer& layer, const torch::Tensor& images, int rank, int world) {
  auto part = images.chunk(world)[static_cast<std::size_t>(rank)].detach().requires_grad_();
  const auto output = layer->forward(part);
  (output * part.detach().cos()).sum().backward();
  return {output.detach(), part.grad(), layer->running_mean, layer->running_var};
}

template <typename Layer>
void expect_statistics_of_the_whole_batch(const ProcessGroup& group,
                                          const std::vector<std::int64_t>& shape,
                                          bool affine = true) {
  const auto images = torch::randn(shape, at::detail::createCPUGenerator(1)) * 3.0 + 1.0;
  const auto run = [&](const ProcessGroup& ranks) {
    Layer layer(torch::nn::BatchNormOptions(3).momentum(0.3).affine(affine));
    EXPECT_EQ(convert_sync_batchnorm(*layer, ranks), 1);
    EXPECT_EQ(convert_sync_batchnorm(*layer, ranks), 1);  // again does no harm
    EXPECT_EQ(layer->children().size(), ranks.world_size() == 1 ? 0U : 1U);
    for (const auto& child : layer->children()) {
      EXPECT_FALSE(child->is_serializable()) << "adds nothing to an archive";
    }
    return pass(layer, images, ranks.rank(), ranks.world_size());
  };
  const auto whole = run(ProcessGroup::single());
  const auto part = run(group);
  for (std::size_t i = 0; i < 4; ++i) {
    const auto expected =
        i < 2 ? whole[i].chunk(2)[static_cast<std::size_t>(group.rank())] : whole[i];
    EXPECT_LE(relative_difference(part[i], expected), 1e-6) << shape << ", " << i;
  }
}

TEST_ON_RANKS(ConvertSyncBatchnorm, GivesLayersOfTorchNnTheStatisticsOfTheWholeBatch, 2) {
  expect_statistics_of_the_whole_batch<torch::nn::BatchNorm1d>(group, {6, 3});
  expect_statistics_of_the_whole_batch<torch::nn::BatchNorm1d>(group, {6, 3, 5});
  expect_statistics_of_the_whole_batch<torch::nn::BatchNorm2d>(group, {6, 3, 4, 5});
  expect_statistics_of_the_whole_batch<torch::nn::BatchNorm2d>(group, {6, 3, 4, 5}, false);
  expect_statistics_of_the_whole_batch<torch::nn::BatchNorm3d>(group, {6, 3, 4, 2, 2});
}

TEST_ON_RANKS(ConvertSyncBatchnorm, LeavesOtherLayersAndEvaluationsLocal, 2) {
  torch::nn::Sequential network(torch::nn::BatchNorm2d(3), torch::nn::ReLU());
  const auto names = tensors_of(*network);
  EXPECT_EQ(convert_sync_batchnorm(*network, group), 1);
  EXPECT_EQ(tensors_of(*network), names);
  const auto input = torch::full({2, 3, 2, 2}, group.rank() + 1.0);
  torch::nn::BatchNorm2d local(3);
  EXPECT_TRUE(local->forward(input).eq(0).all().item<bool>());
  EXPECT_FALSE(network->forward(input).eq(0).all().item<bool>() && group.rank() == 1);
  network->eval();
  if (group.rank() == 0) network->forward(input);  // no collective
  torch::nn::BatchNorm2d without(torch::nn::BatchNormOptions(3).track_running_stats(false));
  EXPECT_EQ(convert_sync_batchnorm(*without, group), 1);
  without->eval();
  if (group.rank() == 0) without->forward(input);  // of the statistics of its own batch
  network->train();
  EXPECT_EQ(convert_sync_batchnorm(*network, ProcessGroup::single()), 1);
  EXPECT_TRUE(network->forward(input).eq(0).all().item<bool>()) << "local again";
}

}  // namespace
}  // namespace ladder
