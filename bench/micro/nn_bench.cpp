// SPDX-License-Identifier: Apache-2.0
// The networks: single layers, and the steps of training that their shares are taken of.
//   build/bin/micro --benchmark_filter=nn
#include <benchmark/benchmark.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <string>

#include "bench/micro/training_step.h"
#include "ladder/kernels/conv_relu_max_pool.h"
#include "ladder/kernels/first_conv2d.h"
#include "ladder/kernels/onednn_linear.h"
#include "ladder/kernels/relu_max_pool.h"
#include "ladder/nn/batch_norm.h"
#include "ladder/nn/channels_last.h"
#include "ladder/nn/dropout.h"
#include "ladder/nn/random_scope.h"

namespace ladder {
namespace {

// The mask of BasicNet's first dropout, in both maths and both layouts.
void nn_dropout_forward(benchmark::State& state, DropoutMasks masks, bool channels_last) {
  auto input = torch::randn({64, 64, 12, 12});
  if (channels_last) input = to_channels_last(input);
  const Dropout dropout({.p = 0.25, .layer = 1, .masks = masks});
  const RandomScope random({.seed = 42, .epoch = 0, .positions = torch::arange(64)});
  for (auto _ : state) benchmark::DoNotOptimize(dropout.forward(input));
}
BENCHMARK_CAPTURE(nn_dropout_forward, reference, DropoutMasks::kByGenerator, false)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(nn_dropout_forward, counter_nchw, DropoutMasks::kByPosition, false)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(nn_dropout_forward, counter_channels_last, DropoutMasks::kByPosition, true)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

// Forward and backward of a part of a network on channels_last images of `sizes`.
template <typename Part>
void pass_through(benchmark::State& state, at::IntArrayRef sizes, const Part& part) {
  const auto images = to_channels_last(torch::randn(sizes)).requires_grad_();
  const auto output = part(images).detach();
  const auto gradient = torch::randn_like(output);
  for (auto _ : state) {
    images.mutable_grad() = torch::Tensor();
    part(images).backward(gradient);
  }
}

// The first convolutions, whose images need no gradient: LibTorch's, and with all that follows.
void nn_first_conv(benchmark::State& state, bool fused, std::int64_t batch, std::int64_t channels,
                   std::int64_t size, std::int64_t padding, Activation activation) {
  const auto images = to_channels_last(torch::randn({batch, 1, 28, 28}));
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(1, channels, size).padding(padding));
  use_channels_last(*conv);
  const auto layer = [&] {
    if (fused) return first_conv2d(images, conv->weight, conv->bias, padding, activation);
    const auto output = conv->forward(images);
    return activation == Activation::kRelu ? output.relu() : output;
  };
  const auto gradient = torch::randn_like(layer().detach());
  for (auto _ : state) {
    conv->zero_grad();
    layer().backward(gradient);
  }
}
BENCHMARK_CAPTURE(nn_first_conv, basicnet_libtorch, false, 64, 32, 3, 0, Activation::kRelu)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(nn_first_conv, basicnet, true, 64, 32, 3, 0, Activation::kRelu)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(nn_first_conv, convnet_libtorch, false, 32, 16, 5, 2, Activation::kNone)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(nn_first_conv, convnet, true, 32, 16, 5, 2, Activation::kNone)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

// BasicNet's second convolution with all that follows it: as three operations; as two, of which the
// second adds the bias too; and as one, whose backward skips the zeros.
using ConvLayer = torch::Tensor(const torch::Tensor& input, const torch::Tensor& weight,
                                const torch::Tensor& bias);
torch::Tensor three_operations(const torch::Tensor& input, const torch::Tensor& weight,
                               const torch::Tensor& bias) {
  return torch::max_pool2d(torch::relu(torch::conv2d(input, weight, bias)), 2);
}
torch::Tensor dense(const torch::Tensor& input, const torch::Tensor& weight,
                    const torch::Tensor& bias) {
  return relu_max_pool2d(torch::conv2d(input, weight), bias);
}
void nn_conv_relu_max_pool(benchmark::State& state, ConvLayer* layer) {
  torch::nn::Conv2d conv(32, 64, 3);
  use_channels_last(*conv);
  const auto images = to_channels_last(torch::randn({64, 32, 26, 26})).requires_grad_();
  auto gradient = torch::randn_like(layer(images, conv->weight, conv->bias).detach());
  gradient *= torch::rand_like(gradient) > 0.25;  // as a dropout leaves it
  for (auto _ : state) {
    images.mutable_grad() = torch::Tensor();
    conv->zero_grad();
    layer(images, conv->weight, conv->bias).backward(gradient);
  }
}
BENCHMARK_CAPTURE(nn_conv_relu_max_pool, three_operations, three_operations)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(nn_conv_relu_max_pool, dense, dense)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(nn_conv_relu_max_pool, sparse, conv2d_relu_max_pool2d)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

// Between BasicNet's images and fc1: dropout and flatten as two operations, and as one.
void nn_dropout_flatten(benchmark::State& state, bool fused) {
  const Dropout dropout({.p = 0.25, .layer = 1});
  const RandomScope random({.seed = 42, .epoch = 0, .positions = torch::arange(64)});
  pass_through(state, {64, 64, 12, 12}, [&](const torch::Tensor& x) {
    return fused ? dropout.forward_flatten(x) : torch::flatten(dropout.forward(x), 1);
  });
}
BENCHMARK_CAPTURE(nn_dropout_flatten, two_operations, false)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(nn_dropout_flatten, fused, true)->Unit(benchmark::kMillisecond)->UseRealTime();

// BasicNet's first linear layer: the products of MKL, and those of oneDNN.
void nn_linear(benchmark::State& state, bool onednn) {
  const auto input = torch::randn({64, 9216}).requires_grad_();
  torch::nn::Linear linear(9216, 128);
  const auto gradient = torch::randn({64, 128});
  for (auto _ : state) {
    input.mutable_grad() = torch::Tensor();
    linear->zero_grad();
    const auto output = onednn ? onednn_linear(input, linear->weight, linear->bias)
                               : torch::linear(input, linear->weight, linear->bias);
    output.backward(gradient);
  }
}
BENCHMARK_CAPTURE(nn_linear, libtorch, false)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(nn_linear, onednn, true)->Unit(benchmark::kMillisecond)->UseRealTime();

// What follows ConvNet's first convolution: as three operations, and as one.
void nn_batch_norm_relu_max_pool(benchmark::State& state, bool fused) {
  BatchNorm norm(BatchNormOptions{.features = 16});
  pass_through(state, {32, 16, 28, 28}, [&](const torch::Tensor& x) {
    return fused ? norm->forward_relu_max_pool2d(x)
                 : torch::max_pool2d(torch::relu(norm->forward(x)), 2);
  });
}
BENCHMARK_CAPTURE(nn_batch_norm_relu_max_pool, three_operations, false)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(nn_batch_norm_relu_max_pool, fused, true)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

// The end of a network: log-softmax and the loss, forward and backward. So few numbers that the
// cost is that of the calls.
void nn_loss(benchmark::State& state, const std::string& recipe_name) {
  const Recipe recipe({.name = recipe_name});
  const Batch batch = random_batch(state.range(0));
  const auto scores = torch::randn({state.range(0), 10}).requires_grad_();
  const bool has_log_softmax = recipe.head() == mnist::Head::kLogSoftmax;
  for (auto _ : state) {
    scores.mutable_grad() = torch::Tensor();
    const auto output = has_log_softmax ? torch::log_softmax(scores, 1) : scores;
    recipe.loss(output, batch).backward();
  }
}
BENCHMARK_CAPTURE(nn_loss, basicnet, "basicnet")
    ->Arg(64)
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(nn_loss, convnet, "convnet")
    ->Arg(32)
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

// The gradients of one batch. Reference math is in NCHW and draws PyTorch's dropout, fast math
// is in channels_last and draws by counter.
void nn_forward_backward(benchmark::State& state, const std::string& recipe, Math math) {
  TrainingStep step({.recipe = recipe, .batch_size = state.range(0), .math = math});
  for (auto _ : state) step.forward_and_backward();
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK_CAPTURE(nn_forward_backward, basicnet_reference, "basicnet", Math::kReference)
    ->Arg(64)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(nn_forward_backward, basicnet_fast, "basicnet", Math::kFast)
    ->Arg(64)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(nn_forward_backward, convnet_reference, "convnet", Math::kReference)
    ->Arg(32)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(nn_forward_backward, convnet_fast, "convnet", Math::kFast)
    ->Arg(32)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

// The same and the optimizer, in fast math: the whole step of a stage but for the loader.
void nn_step(benchmark::State& state, const std::string& recipe, Precision precision) {
  TrainingStep step({.recipe = recipe, .batch_size = state.range(0), .precision = precision});
  for (auto _ : state) step.run();
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK_CAPTURE(nn_step, basicnet_fp32, "basicnet", Precision::kFp32)
    ->Arg(64)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(nn_step, basicnet_bf16, "basicnet", Precision::kBf16)
    ->Arg(64)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(nn_step, convnet_fp32, "convnet", Precision::kFp32)
    ->Arg(32)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(nn_step, convnet_bf16, "convnet", Precision::kBf16)
    ->Arg(32)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace ladder
