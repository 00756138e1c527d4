// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "ladder/nn/sync_batch_norm.h"

namespace ladder {

struct BatchNormOptions {
  std::int64_t features = 0;             // channels C of the input
  double eps = 1e-5;                     // added to the variance
  std::optional<double> momentum = 0.1;  // weight of the new batch; none = average over all batches
};

// Normalises every channel by its mean and variance over the batch and all pixels.
//
// In training it uses the statistics of the batch and moves running_mean and running_var (unbiased)
// towards them; in evaluation mode it uses the running ones. Bit-equal to torch.nn.BatchNorm2d,
// with the same names in the state dictionary. LibTorch's own module cannot share its statistics
// between ranks by itself; convert_sync_batchnorm does it.
//
// With a sum over ranks, the statistics are those of all ranks' batches, and forward and backward
// in training are collectives; see sync_batch_norm.h and convert_sync_batchnorm (parallel/).
//
// Input [N, C, ...], for forward_relu_max_pool2d [N, C, H, W]; the output keeps dtype and layout.
class BatchNormImpl : public torch::nn::Module {
 public:
  explicit BatchNormImpl(BatchNormOptions options);

  torch::Tensor forward(const torch::Tensor& input);

  // max_pool2d(relu(forward(input + input_bias)), 2), where `input_bias`, float [C], is that of the
  // convolution in front; undefined = none. On the CPU in one operator (ops.h).
  torch::Tensor forward_relu_max_pool2d(const torch::Tensor& input,
                                        const torch::Tensor& input_bias = {});

  // Shares the statistics with other ranks from now on (convert_sync_batchnorm); an empty sum, as
  // of a group of one, changes nothing.
  void set_sum_over_ranks(SumOverRanks sum) { sum_ = std::move(sum); }
  bool is_synchronised() const { return sum_.has_value(); }

  torch::Tensor weight;               // float [C], starts as 1
  torch::Tensor bias;                 // float [C], starts as 0
  torch::Tensor running_mean;         // float [C], buffer
  torch::Tensor running_var;          // float [C], buffer
  torch::Tensor num_batches_tracked;  // int64 scalar, buffer

 private:
  double update_weight();
  torch::Tensor normalize(const torch::Tensor& input, const BatchNormTensors& tensors,
                          double momentum);

  BatchNormOptions options_;
  std::optional<SumOverRanks> sum_;  // none = local
};
TORCH_MODULE(BatchNorm);

}  // namespace ladder
