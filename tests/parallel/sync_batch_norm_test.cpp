// SPDX-License-Identifier: Apache-2.0
#include "ladder/nn/sync_batch_norm.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ladder/amp/autocast.h"
#include "ladder/core/error.h"
#include "ladder/core/gpus.h"
#include "ladder/nn/batch_norm.h"
#include "ladder/nn/state_dict.h"
#include "ladder/optim/sgd.h"
#include "ladder/parallel/convert_sync_batchnorm.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "ladder/parallel/replica_check.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/replicas.h"
#include "tests/support/training.h"

namespace ladder {
namespace {

constexpr std::int64_t kChannels = 3;
constexpr double kEps = 1e-5;
constexpr double kTolerance = 1e-6;
constexpr double kGpuTolerance = 1e-4;

// How many samples of the global batch each rank has.
using Sizes = std::vector<std::int64_t>;

Sizes even(int world) { return Sizes(static_cast<std::size_t>(world), 4); }
Sizes one_each(int world) { return Sizes(static_cast<std::size_t>(world), 1); }
Sizes uneven(int world) {
  Sizes sizes;
  for (int rank = 0; rank < world; ++rank) sizes.push_back(2 * rank + 1);
  return sizes;
}
Sizes empty_first(int world) {
  auto sizes = even(world);
  sizes.front() = 0;
  return sizes;
}
Sizes empty_last(int world) {
  auto sizes = even(world);
  sizes.back() = 0;
  return sizes;
}

struct Case {
  const char* name;
  Sizes (*sizes)(int world) = even;
  std::vector<std::int64_t> pixels = {5, 4};  // the input is [N, C, pixels...]
  double mean = 0.0;                          // of the input
  torch::MemoryFormat layout = torch::MemoryFormat::Contiguous;
  torch::ScalarType dtype = torch::kFloat32;
  std::optional<double> momentum = 0.1;
  int steps = 1;
};

const std::vector<Case>& cases() {
  constexpr auto kChannelsLast = torch::MemoryFormat::ChannelsLast;
  static const std::vector<Case> all = {
      {.name = "even slices"},
      {.name = "uneven slices", .sizes = uneven},
      {.name = "none on the first rank", .sizes = empty_first},
      {.name = "none on the last rank", .sizes = empty_last},
      {.name = "mean 5", .sizes = uneven, .mean = 5.0},
      {.name = "mean 5, channels_last", .sizes = uneven, .mean = 5.0, .layout = kChannelsLast},
      {.name = "mean 100", .mean = 100.0},
      {.name = "mean 100, channels_last", .mean = 100.0, .layout = kChannelsLast},
      {.name = "none on a rank, channels_last", .sizes = empty_last, .layout = kChannelsLast},
      {.name = "[N, C]", .sizes = uneven, .pixels = {}},
      {.name = "[N, C, L]", .sizes = uneven, .pixels = {7}},
      {.name = "one value a rank", .sizes = one_each, .pixels = {}},
      {.name = "bfloat16", .sizes = uneven, .mean = 1.0, .dtype = torch::kBFloat16},
      {.name = "bfloat16, none on a rank", .sizes = empty_first, .dtype = torch::kBFloat16},
      {.name = "float16, channels_last", .layout = kChannelsLast, .dtype = torch::kFloat16},
      {.name = "float64", .sizes = uneven, .mean = 1.0, .dtype = torch::kFloat64},
      {.name = "float64, none on a rank", .sizes = empty_last, .dtype = torch::kFloat64},
      {.name = "several steps", .sizes = uneven, .mean = 2.0, .steps = 4},
      {.name = "average of all batches", .sizes = uneven, .momentum = std::nullopt, .steps = 4},
  };
  return all;
}

// A step's global batch, and the gradient of the loss by its output.
struct Step {
  torch::Tensor input;
  torch::Tensor gradient;
};

// What a step gives. Of several ranks: outputs and gradients in rank order, gradients of weight
// and bias added up.
struct Results {
  torch::Tensor output;
  torch::Tensor input_gradient;
  torch::Tensor weight_gradient;
  torch::Tensor bias_gradient;
  torch::Tensor running_mean;
  torch::Tensor running_var;
};

std::int64_t sum_of(const Sizes& sizes) {
  std::int64_t sum = 0;
  for (const auto size : sizes) sum += size;
  return sum;
}

Step make_step(const Case& test, int world, int number) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(number + 1));
  Sizes shape = {sum_of(test.sizes(world)), kChannels};
  shape.insert(shape.end(), test.pixels.begin(), test.pixels.end());
  const auto input = torch::randn(shape, generator) * 1.5 + test.mean;
  return {input.to(test.dtype), torch::randn(shape, generator).to(test.dtype)};
}

torch::Tensor first_weight() { return torch::tensor({0.5, 1.0, 1.5}, torch::kFloat32); }
torch::Tensor first_bias() { return torch::tensor({-1.0, 0.0, 2.0}, torch::kFloat32); }

// The layer in one process that has the whole batch, in float64. LibTorch's own in float32 is no
// reference: on channels_last its sums are off by 2e-5 at a mean of 5.
class OneProcess {
 public:
  Results step(const Step& batch, double momentum) {
    const auto input = batch.input.clone().to(torch::kFloat64).requires_grad_();
    const auto weight = first_weight().to(torch::kFloat64).requires_grad_();
    const auto bias = first_bias().to(torch::kFloat64).requires_grad_();
    const auto output = torch::batch_norm(input, weight, bias, running_mean_, running_var_,
                                          /*training=*/true, momentum, kEps, /*cudnn=*/false);
    output.backward(batch.gradient.to(torch::kFloat64));
    return {output.detach(), input.grad(), weight.grad(), bias.grad(), running_mean_, running_var_};
  }

 private:
  torch::Tensor running_mean_ = torch::zeros({kChannels}, torch::kFloat64);
  torch::Tensor running_var_ = torch::ones({kChannels}, torch::kFloat64);
};

BatchNorm make_layer(std::optional<double> momentum = 0.1) {
  const torch::NoGradGuard no_grad;
  BatchNorm layer(BatchNormOptions{.features = kChannels, .eps = kEps, .momentum = momentum});
  layer->weight.copy_(first_weight());
  layer->bias.copy_(first_bias());
  return layer;
}

BatchNorm converted_layer(const ProcessGroup& group, std::optional<double> momentum = 0.1) {
  auto layer = make_layer(momentum);
  EXPECT_EQ(convert_sync_batchnorm(*layer, group), 1);
  return layer;
}

torch::Tensor own_slice(const torch::Tensor& whole, const Sizes& sizes, int rank) {
  const auto index = static_cast<std::size_t>(rank);
  const std::int64_t begin = sum_of({sizes.begin(), sizes.begin() + rank});
  return whole.narrow(0, begin, sizes[index]);
}

torch::Tensor cat_of_ranks(const torch::Tensor& tensor, const ProcessGroup& group) {
  return torch::cat(group.all_gather(tensor.detach().cpu()));
}

torch::Tensor sum_of_ranks(const torch::Tensor& tensor, const ProcessGroup& group) {
  auto sum = tensor.detach().cpu().clone();
  group.all_reduce(sum);
  return sum;
}

// A step of the converted layer, of which this rank has a slice.
Results step_of_ranks(BatchNorm& layer, const Case& test, const Step& batch,
                      const ProcessGroup& group) {
  const auto sizes = test.sizes(group.world_size());
  const auto device = layer->weight.device();
  const auto mine = own_slice(batch.input, sizes, group.rank());
  const auto input = mine.clone(test.layout).to(device).requires_grad_();
  layer->zero_grad();
  const auto output = layer->forward(input);
  output.backward(own_slice(batch.gradient, sizes, group.rank()).clone(test.layout).to(device));
  EXPECT_EQ(output.scalar_type(), test.dtype);
  EXPECT_EQ(input.grad().scalar_type(), test.dtype);
  EXPECT_TRUE(output.is_contiguous(test.layout));
  expect_equal_on_all_ranks(flat(layer->buffers()), group);
  return {cat_of_ranks(output, group),
          cat_of_ranks(input.grad(), group),
          sum_of_ranks(layer->weight.grad(), group),
          sum_of_ranks(layer->bias.grad(), group),
          layer->running_mean.cpu(),
          layer->running_var.cpu()};
}

void expect_near(const char* what, const torch::Tensor& got, const torch::Tensor& expected,
                 double tolerance) {
  EXPECT_EQ(got.sizes(), expected.sizes()) << what;
  EXPECT_LE(relative_difference(got, expected), tolerance) << what;
}

// Computed in float64 and rounded once, by half a unit at most: 2^-9 of each value in bfloat16,
// 2^-12 in float16, and so no more in the norm. In float32 that is below the tolerance.
double rounding_of(torch::ScalarType dtype) {
  if (dtype == torch::kBFloat16) return 1.0 / 512;
  if (dtype == torch::kFloat16) return 1.0 / 4096;
  return 0.0;
}

void expect_near(const Results& got, const Results& expected, const Case& test, double tolerance) {
  const double rounded = tolerance + rounding_of(test.dtype);
  expect_near("output", got.output, expected.output, rounded);
  expect_near("input gradient", got.input_gradient, expected.input_gradient, rounded);
  // On a GPU, LibTorch's kernel rounds partial sums of them to the dtype of the images.
  const double of_sums =
      tolerance + (tolerance == kGpuTolerance ? 4 * rounding_of(test.dtype) : 0.0);
  expect_near("weight gradient", got.weight_gradient, expected.weight_gradient, of_sums);
  expect_near("bias gradient", got.bias_gradient, expected.bias_gradient, of_sums);
  expect_near("running_mean", got.running_mean, expected.running_mean, tolerance);
  expect_near("running_var", got.running_var, expected.running_var, tolerance);
}

void expect_like_one_process(const Case& test, const ProcessGroup& group,
                             const torch::Device& device, double tolerance) {
  const testing::ScopedTrace trace("case", 0, test.name);
  auto layer = converted_layer(group, test.momentum);
  layer->to(device);
  OneProcess alone;
  for (int step = 0; step < test.steps; ++step) {
    const auto batch = make_step(test, group.world_size(), step);
    const double momentum = test.momentum.value_or(1.0 / (step + 1));
    expect_near(step_of_ranks(layer, test, batch, group), alone.step(batch, momentum), test,
                tolerance);
    EXPECT_EQ(layer->num_batches_tracked.item<std::int64_t>(), step + 1);
  }
}

class SyncBatchNorm : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, SyncBatchNorm, testing::Values(2, 3));

// All cases, and in float64 with weights in float64 too.
void expect_like_one_process(const ProcessGroup& group, const torch::Device& device,
                             double tolerance) {
  for (const auto& test : cases()) expect_like_one_process(test, group, device, tolerance);
  const Case test{.name = "float64", .sizes = uneven, .mean = 1.0, .dtype = torch::kFloat64};
  auto layer = converted_layer(group);
  layer->to(device, torch::kFloat64);
  const auto batch = make_step(test, group.world_size(), 0);
  OneProcess alone;
  expect_near(step_of_ranks(layer, test, batch, group), alone.step(batch, 0.1), test, 1e-12);
}

TEST_P(SyncBatchNorm, IsBatchNormOfTheGlobalBatch) {
  run_ranks(GetParam(), [](const ProcessGroup& group) {
    expect_like_one_process(group, torch::kCPU, kTolerance);
  });
}

// All ranks share one GPU, where the sums are of float32.
TEST_P(SyncBatchNorm, IsBatchNormOfTheGlobalBatchOnAGpu) {
  if (visible_gpu_count() == 0) GTEST_SKIP() << "skipped: no GPU";
  run_ranks(GetParam(), [](const ProcessGroup& group) {
    expect_like_one_process(group, torch::Device("cuda:0"), kGpuTolerance);
  });
}

TEST_P(SyncBatchNorm, RefusesOneValuePerChannelOverAllRanksOnAllRanks) {
  run_ranks(GetParam(), [](const ProcessGroup& group) {
    const int world = group.world_size();
    for (int owner = 0; owner <= world; ++owner) {  // the last one: nobody has any
      auto layer = converted_layer(group);
      const int samples = group.rank() == owner ? 1 : 0;
      const std::string message =
          "BatchNorm: expected more than one value per channel, over all ranks, while training, "
          "got " +
          std::string(owner < world ? "1" : "0");
      EXPECT_ERROR(layer->forward(torch::ones({samples, kChannels})), UsageError, message);
      EXPECT_ERROR(layer->forward(torch::ones({samples, kChannels, 1, 1})), UsageError,
                   "hint: use a larger batch");
      EXPECT_TRUE(torch::equal(layer->running_mean, torch::zeros({kChannels})));
      EXPECT_TRUE(torch::equal(layer->running_var, torch::ones({kChannels})));
    }
    auto layer = converted_layer(group);
    EXPECT_NO_THROW(layer->forward(torch::ones({1, kChannels})));  // one a rank will do
  });
}

TEST_ON_RANKS(SyncBatchNormAlone, InAGroupOfOneIsBitEqualToBatchNorm, 1) {
  for (const auto& alone : {group, ProcessGroup::single()}) {
    auto ours = converted_layer(alone);
    auto plain = make_layer();
    const Case test{.name = "a rank", .mean = 3.0};
    for (int step = 0; step < 3; ++step) {
      const auto batch = make_step(test, 1, step);
      const auto forward_and_backward = [&](BatchNorm& layer) {
        const auto input = batch.input.clone().requires_grad_();
        const auto output = layer->forward(input);
        output.backward(batch.gradient);
        return flat({output, input.grad(), layer->weight.grad(), layer->bias.grad(),
                     layer->running_mean, layer->running_var, layer->num_batches_tracked});
      };
      EXPECT_TRUE(torch::equal(forward_and_backward(ours), forward_and_backward(plain)));
    }
    EXPECT_ERROR(ours->forward(torch::ones({1, kChannels, 1, 1})), UsageError,
                 "expected more than one value per channel");
  }
}

// One rank alone would wait for ever, if there were anything to wait for.
TEST_ON_RANKS(SyncBatchNormAlone, EvaluatesWithTheRunningValuesAndWithoutTheOthers, 3) {
  const Case test{.name = "evaluation", .sizes = uneven, .mean = 2.0};
  auto layer = converted_layer(group);
  step_of_ranks(layer, test, make_step(test, 3, 0), group);
  layer->eval();
  const auto mean = layer->running_mean.clone();
  const auto variance = layer->running_var.clone();
  for (int batch = 0; batch < group.rank(); ++batch) {
    const auto input = make_step(test, 3, 1 + batch).input;
    EXPECT_TRUE(torch::equal(layer->forward(input),
                             torch::batch_norm(input, first_weight(), first_bias(), mean, variance,
                                               /*training=*/false, 0.0, kEps, false)));
  }
  EXPECT_TRUE(torch::equal(layer->running_mean, mean));
  EXPECT_TRUE(torch::equal(layer->running_var, variance));
  EXPECT_EQ(layer->num_batches_tracked.item<std::int64_t>(), 1);
  layer->train();
  const auto batch = make_step(test, 3, 1);
  OneProcess alone;  // its running values begin anew; the rest is of this batch
  expect_near("output", step_of_ranks(layer, test, batch, group).output,
              alone.step(batch, 0.1).output, kTolerance);
}

// Gradients of weight and bias, of an input with and without a gradient of its own.
TEST_ON_RANKS(SyncBatchNormAlone, ServesAnInputThatNeedsNoGradient, 2) {
  const Case test{.name = "images", .sizes = uneven, .mean = 1.0};
  const auto batch = make_step(test, 2, 0);
  const auto input = own_slice(batch.input, uneven(2), group.rank());
  auto with = converted_layer(group);
  step_of_ranks(with, test, batch, group);
  auto without = converted_layer(group);
  const auto output = without->forward(input);
  output.backward(own_slice(batch.gradient, uneven(2), group.rank()));
  EXPECT_FALSE(input.requires_grad());
  EXPECT_TRUE(torch::equal(without->weight.grad(), with->weight.grad()));
  EXPECT_TRUE(torch::equal(without->bias.grad(), with->bias.grad()));
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(converted_layer(group)->forward(input).requires_grad());
}

// The gradient of the input for a gradient of the output that lies in memory as it does.
torch::Tensor input_gradient(const torch::Tensor& input, const torch::Tensor& gradient,
                             const ProcessGroup& group) {
  auto layer = converted_layer(group);
  const auto leaf = input.detach().clone().requires_grad_();
  layer->forward(leaf).backward(gradient);
  return leaf.grad();
}

TEST_ON_RANKS(SyncBatchNormAlone, TakesInputsAndGradientsOfAnyLayout, 2) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(group.rank()));
  const auto input = torch::randn({4, kChannels, 6, 6}, generator);
  const auto gradient = torch::randn({4, kChannels, 6, 6}, generator);
  const auto transposed = gradient.transpose(2, 3).contiguous().transpose(2, 3);
  const auto expanded = gradient.slice(1, 0, 1).expand_as(input);
  const auto wide = torch::stack({gradient, gradient}, -1).select(-1, 1);
  for (const auto layout : {torch::MemoryFormat::Contiguous, torch::MemoryFormat::ChannelsLast}) {
    const auto x = input.contiguous(layout);
    const auto expected = input_gradient(x, gradient, group);
    EXPECT_GT(expected.norm().item<double>(), 1.0);
    for (const auto& same :
         {gradient.contiguous(torch::MemoryFormat::ChannelsLast), transposed, wide}) {
      EXPECT_TRUE(torch::equal(input_gradient(x, same, group), expected));
    }
    EXPECT_TRUE(torch::equal(input_gradient(x, expanded, group),
                             input_gradient(x, expanded.contiguous(), group)));
  }
  const auto view = input.slice(2, 0, 5).transpose(2, 3);
  EXPECT_FALSE(view.is_contiguous());
  EXPECT_TRUE(torch::equal(converted_layer(group)->forward(view),
                           converted_layer(group)->forward(view.contiguous())));
}

std::shared_ptr<Model> converted_network(const ProcessGroup& group) {
  const auto network = first_model(convnet());
  EXPECT_EQ(convert_sync_batchnorm(*network, group), 2);
  return wrapped(network, group);
}

std::shared_ptr<Model> local_network(const ProcessGroup& group) {
  return wrapped(first_model(convnet()), group);
}

// Slices of two sizes.
std::int64_t uneven_size(const ProcessGroup& group) { return 2 * group.world_size() + 1; }

// What the ranks are compared with: one process with the whole batch, in float64, because one in
// float32 is 1e-6 away from it itself (its BatchNorm adds up in float32).
std::shared_ptr<Model> exact_network() {
  auto network = first_model(convnet());
  network->to(torch::kFloat64);
  return network;
}

Batch exact(Batch batch) {
  batch.inputs = batch.inputs.only().to(torch::kFloat64);
  return batch;
}

torch::Tensor first_gradient(Model& model, const ProcessGroup& group) {
  const auto batch = random_batch(uneven_size(group));
  run_backward(model, convnet(), slice_of(batch, group.rank(), group.world_size()));
  return flat_gradients(model);
}

TEST_P(SyncBatchNorm, GivesAConvNetTheGradientOfOneProcess) {
  run_ranks(GetParam(), [](const ProcessGroup& group) {
    const auto alone = exact_network();
    run_backward(*alone, convnet(), exact(random_batch(uneven_size(group))));
    const auto expected = flat_gradients(*alone);
    const auto gradient = first_gradient(*converted_network(group), group);
    EXPECT_LE(relative_difference(gradient, expected), kTolerance);
    expect_equal_on_all_ranks(gradient, group);
    EXPECT_GE(relative_difference(first_gradient(*local_network(group), group), expected), 1e-2);
  });
}

void expect_near_buffers(const torch::nn::Module& got, const torch::nn::Module& expected,
                         double tolerance) {
  const auto wanted = expected.named_buffers();
  for (const auto& item : unwrapped(got).named_buffers()) {
    expect_near(item.key().c_str(), item.value(), wanted[item.key()], tolerance);
  }
}

// Each part is normalised by its own mean over all ranks; gradients add up.
TEST_ON_RANKS(SyncBatchNormAlone, AddsUpThePartsOfABatchUnderNoSync, 3) {
  const auto batch = random_batch(12);
  const std::vector<Batch> parts = {part_of(batch, 0, 7, 1), part_of(batch, 7, 5, 1)};
  const auto backward = [&](Model& model, Batch part) {
    part.global_size = batch.size();
    loss_of(model, convnet(), part).backward();
  };
  const auto network = first_model(convnet());
  convert_sync_batchnorm(*network, group);
  DistributedDataParallel model(network, group);
  {
    const auto pause = model.no_sync();
    backward(model, slice_of(parts.front(), group.rank(), 3));
  }
  backward(model, slice_of(parts.back(), group.rank(), 3));
  const auto alone = exact_network();
  for (const auto& part : parts) backward(*alone, exact(part));
  EXPECT_LE(relative_difference(flat_gradients(model), flat_gradients(*alone)), kTolerance);
  expect_near_buffers(model, *alone, kTolerance);
}

// What stage 4 builds. Convolutions round to bfloat16, 2^-9 of a value each, on both sides.
TEST_ON_RANKS(SyncBatchNormAlone, GivesAConvNetInBFloat16TheGradientOfOneProcess, 2) {
  const auto mixed = [] {
    return std::make_shared<AutocastModel>(first_model(convnet()), torch::kBFloat16);
  };
  const auto alone = mixed();
  run_backward(*alone, convnet(), random_batch(uneven_size(group)));
  const auto difference = [&](bool sync) {
    const auto network = mixed();
    if (sync) convert_sync_batchnorm(*network, group);
    DistributedDataParallel model(network, group);
    return relative_difference(first_gradient(model, group), flat_gradients(*alone));
  };
  EXPECT_LE(difference(true), 0.01);
  EXPECT_GE(difference(false), 0.03);
}

}  // namespace
}  // namespace ladder
