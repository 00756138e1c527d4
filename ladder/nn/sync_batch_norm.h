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

enum class SyncMath { kFloat64, kKernels };

// Batch normalisation in training, with the mean and variance over the batches of all ranks: N
// ranks compute the result of one rank with the whole batch.
//
// Each rank sends 2C + 1 numbers in forward and 2C in backward (docs/reference/4-ddp-amp.md).
// Gradients of weight and bias stay local sums, which DistributedDataParallel averages.
//
// input: [N, C, ...], float32, float64 or a 16-bit type; the output has its dtype and layout. N may
// differ between the ranks and be 0 on some. Forward and backward are collectives: each calls `sum`
// (not empty) once, backward only if the input needs a gradient. `momentum`: weight of this batch
// in the running values.
//
// Gathers and the averaging of gradients share one group, so all ranks must run the same graph:
// with find_unused_parameters, ranks that skip different layers may wait until the timeout.
//
// On the CPU everything is computed in float64, or with kKernels by the kernels of LibTorch's own
// layer, which is faster and has its rounding: float32 numbers, sums in float64. On a GPU, the
// passes over the images are the kernels of Python's SyncBatchNorm, the ranks' sums are added in
// float64, and no call waits for the GPU.
//
// An inf or NaN in one rank's input makes the running values of all ranks NaN for good, as in
// PyTorch: a GradScaler skips the step, but does not restore buffers.
//
// Throws UsageError, on all ranks, unless there is more than one value per channel (on the CPU
// only: the check would wait for a GPU).
//
// Source: Ioffe and Szegedy, "Batch Normalization", 2015, over all ranks. Python's counterpart:
// torch.nn.SyncBatchNorm, which refuses CPU tensors.
torch::Tensor sync_batch_norm(const torch::Tensor& input, const BatchNormTensors& tensors,
                              double momentum, double eps, const SumOverRanks& sum,
                              SyncMath math = SyncMath::kFloat64);

// Throws UsageError unless `count`, the number of values per channel over all ranks, is above 1.
void require_several_values(double count);

}  // namespace ladder
