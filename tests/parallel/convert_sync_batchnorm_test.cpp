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
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ladder/amp/autocast.h"
#include "ladder/core/error.h"
#include "ladder/nn/batch_norm.h"
#include "ladder/nn/state_dict.h"
#include "ladder/parallel/data_parallel.h"
#include "ladder/parallel/distributed_data_parallel.h"
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

// Forward, backward and update of `layer` with this rank's part of `images`.
template <typename Layer>
std::vector<torch::Tensor> pass(Layer& layer, const torch::Tensor& images, int rank, int world) {
  auto part = images.chunk(world)[static_cast<std::size_t>(rank)].detach().requires_grad_();
  const auto output = layer->forward(part);
  (output * part.detach().cos()).sum().backward();
  return {output.detach(), part.grad(), layer->running_mean, layer->running_var};
}

struct LayerCase {
  const char* name;
  std::vector<std::int64_t> shape;
  std::function<std::vector<torch::Tensor>(const ProcessGroup&, const torch::Tensor&, int, int)>
      run;
};

template <typename Layer>
LayerCase layer_case(const char* name, std::vector<std::int64_t> shape, bool affine = true) {
  return {name, std::move(shape),
          [affine](const ProcessGroup& group, const torch::Tensor& images, int rank, int world) {
            Layer layer(torch::nn::BatchNormOptions(3).momentum(0.3).affine(affine));
            EXPECT_EQ(convert_sync_batchnorm(*layer, group), 1);
            EXPECT_EQ(convert_sync_batchnorm(*layer, group), 1);  // again does no harm
            return pass(layer, images, rank, world);
          }};
}

const LayerCase kLayerCases[] = {
    layer_case<torch::nn::BatchNorm1d>("Features", {6, 3}),
    layer_case<torch::nn::BatchNorm1d>("Sequences", {6, 3, 5}),
    layer_case<torch::nn::BatchNorm2d>("Images", {6, 3, 4, 5}),
    layer_case<torch::nn::BatchNorm2d>("WithoutWeights", {6, 3, 4, 5}, false),
    layer_case<torch::nn::BatchNorm3d>("Volumes", {6, 3, 4, 2, 2})};

class LayersOfTorchNn : public testing::TestWithParam<LayerCase> {};
INSTANTIATE_TEST_SUITE_P(Kind, LayersOfTorchNn, testing::ValuesIn(kLayerCases),
                         [](const auto& kind) { return kind.param.name; });

TEST_P(LayersOfTorchNn, HaveTheStatisticsOfTheWholeBatch) {
  run_ranks(2, [](const ProcessGroup& group) {
    torch::manual_seed(1);
    const auto images = torch::randn(GetParam().shape) * 3.0 + 1.0;
    const auto whole = GetParam().run(ProcessGroup::single(), images, 0, 1);
    const auto part = GetParam().run(group, images, group.rank(), 2);
    for (std::size_t i = 0; i < 2; ++i) {
      const auto own = whole[i].chunk(2)[static_cast<std::size_t>(group.rank())];
      EXPECT_LE(relative_difference(part[i], own), 1e-6) << i;
    }
    for (std::size_t i = 2; i < 4; ++i) EXPECT_LE(relative_difference(part[i], whole[i]), 1e-6);
  });
}

TEST(ConvertSyncBatchnorm, AddsNothingToAnArchive) {
  run_ranks(2, [](const ProcessGroup& group) {
    torch::nn::BatchNorm1d layer(3);
    convert_sync_batchnorm(*layer, group);
    ASSERT_EQ(layer->children().size(), 1U);
    EXPECT_FALSE(layer->children()[0]->is_serializable());
  });
}

TEST(ConvertSyncBatchnorm, LeavesOtherLayersAndEvaluationsLocal) {
  run_ranks(2, [](const ProcessGroup& group) {
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
  });
}

}  // namespace
}  // namespace ladder
