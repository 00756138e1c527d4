// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include <functional>
#include <utility>

namespace ladder {

// The tensors of a BatchNorm layer.
struct BatchNormTensors {
  torch::Tensor weight;        // float [C]
  torch::Tensor bias;          // float [C]
  torch::Tensor running_mean;  // float [C]; moved towards the mean of the batch
  torch::Tensor running_var;   // float [C]; moved towards its unbiased variance
  torch::Tensor input_bias;    // float [C], added to the input; undefined = none
};

// A collective: the sum of a float64 tensor over the ranks of a process group, equal bits on all of
// them. Empty = one rank.
using SumOverRanks = std::function<torch::Tensor(const torch::Tensor& local)>;

// Carries a SumOverRanks from forward to backward: IValue::make_capsule and toCapsule.
struct SumOverRanksHolder : torch::CustomClassHolder {
  explicit SumOverRanksHolder(SumOverRanks function) : sum(std::move(function)) {}
  SumOverRanks sum;
};

// Equals: max_pool2d(relu(batch_norm(input)), 2) in training.
//
// Does not write the normalised images. Forward and backward read the input twice each: once for
// sums per channel, once for the result. PyTorch's three operations pass over memory 15 times.
//
// The bias of a convolution in front is best added here, as `input_bias`: normalising removes it
// again, so that it only moves the running mean, and its gradient is exactly zero.
//
// With `sum_over_ranks`, mean and variance are those of the batches of all ranks, and forward and
// backward are collectives, as in sync_batch_norm.
//
// input   [N, C, H, W], C a multiple of 8; further limits: can_fuse_batch_norm
// output  [N, C, H / 2, W / 2], same dtype and layout
//
// Mean and variance are float64 sums over fixed groups of rows, added in order: the same bits on
// any number of threads. PyTorch's results differ by 1e-6 (relative). Throws UsageError, on all
// ranks, unless there is more than one value per channel.
torch::Tensor batch_norm_relu_max_pool2d(const torch::Tensor& input,
                                         const BatchNormTensors& tensors, double momentum,
                                         double eps, const SumOverRanks& sum_over_ranks = {});

// Whether `input` has a shape, dtype and layout that the function above takes.
bool can_fuse_batch_norm(const torch::Tensor& input);

// Throws UsageError unless `count`, the number of values per channel over all ranks, is above 1.
void require_several_values(double count);

}  // namespace ladder
