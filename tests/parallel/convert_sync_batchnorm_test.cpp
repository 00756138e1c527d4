// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/convert_sync_batchnorm.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <map>
#include <memory>
#include <string>

#include "ladder/amp/autocast.h"
#include "ladder/core/error.h"
#include "ladder/nn/batch_norm.h"
#include "ladder/nn/state_dict.h"
#include "ladder/parallel/data_parallel.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
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

TEST(ConvertSyncBatchnorm, SaysHowManyItConverted) {
  run_alone([] {
    const auto group = ProcessGroup::single();
    const auto network = first_model(convnet());
    EXPECT_EQ(convert_sync_batchnorm(*network, group), 2);
    EXPECT_EQ(convert_sync_batchnorm(*network, group), 2);  // again does no harm
    EXPECT_EQ(convert_sync_batchnorm(*first_model(basicnet()), group), 0);
    BatchNorm layer(BatchNormOptions{.features = 3});
    EXPECT_EQ(convert_sync_batchnorm(*layer, group), 1);
    AutocastModel mixed(first_model(convnet()), torch::kBFloat16);
    EXPECT_EQ(convert_sync_batchnorm(mixed, group), 2);
    torch::nn::ModuleList nested(torch::nn::ModuleList(layer, torch::nn::Linear(3, 3)), layer);
    EXPECT_EQ(convert_sync_batchnorm(*nested, group), 2);
  });
}

TEST(ConvertSyncBatchnorm, KeepsTheTensorsAndTheirNames) {
  run_alone([] {
    const auto network = first_model(convnet());
    const auto before = tensors_of(*network);
    EXPECT_TRUE(before.contains("layer1.1.running_mean"));
    convert_sync_batchnorm(*network, ProcessGroup::single());
    EXPECT_EQ(tensors_of(*network), before);
  });
}

TEST(ConvertSyncBatchnorm, RefusesAModelThatIsWrappedAlready) {
  run_alone([] {
    const auto group = ProcessGroup::single();
    const auto ddp = wrapped(first_model(convnet()), group);
    EXPECT_ERROR(convert_sync_batchnorm(*ddp, group), UsageError, kWrapped);
    DataParallel replicas(first_model(convnet()), {.device_ids = {torch::kCPU, torch::kCPU}});
    EXPECT_ERROR(convert_sync_batchnorm(replicas, group), UsageError, kWrapped);
    AutocastModel around(ddp, torch::kBFloat16);
    EXPECT_ERROR(convert_sync_batchnorm(around, group), UsageError, kWrapped);
    EXPECT_EQ(convert_sync_batchnorm(ddp->module(), group), 2);  // the network in it is none
  });
}

// Both layers normalise by the ranks' own batches, which differ: nothing was converted.
TEST(ConvertSyncBatchnorm, RefusesABatchNormOfLibTorchAndConvertsNothing) {
  run_ranks(2, [](const ProcessGroup& group) {
    BatchNorm first(BatchNormOptions{.features = 3});
    BatchNorm last(BatchNormOptions{.features = 3});
    torch::nn::ModuleList network(
        first, torch::nn::ModuleList(torch::nn::Linear(3, 3), torch::nn::BatchNorm2d(3)), last);
    EXPECT_ERROR(
        convert_sync_batchnorm(*network, group), UsageError,
        "convert_sync_batchnorm: 1.1 is a BatchNorm of torch::nn, which cannot be converted; "
        "hint: build the network with ladder::BatchNorm");
    torch::manual_seed(static_cast<std::uint64_t>(group.rank()));
    const auto input = torch::randn({4, 3, 2, 2}) + group.rank();
    for (auto& layer : {first, last}) {
      BatchNorm local(BatchNormOptions{.features = 3});
      EXPECT_TRUE(torch::equal(BatchNorm(layer)->forward(input), local->forward(input)));
    }
  });
}

TEST(ConvertSyncBatchnorm, RefusesEveryKindOfLibTorchsBatchNorm) {
  run_alone([] {
    const auto group = ProcessGroup::single();
    constexpr const char* kMessage = "the module is a BatchNorm of torch::nn";
    torch::nn::BatchNorm1d one(3);
    torch::nn::BatchNorm2d two(3);
    torch::nn::BatchNorm3d three(3);
    EXPECT_ERROR(convert_sync_batchnorm(*one, group), UsageError, kMessage);
    EXPECT_ERROR(convert_sync_batchnorm(*two, group), UsageError, kMessage);
    EXPECT_ERROR(convert_sync_batchnorm(*three, group), UsageError, kMessage);
  });
}

}  // namespace
}  // namespace ladder
