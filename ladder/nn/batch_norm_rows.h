// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <vector>

namespace ladder::windows {

// The passes of batch_norm_relu_max_pool2d over all images, on all threads; batch_norm_passes.h has
// them over one row.
enum class Step { kMoments, kPool, kGradientSums, kGradient };

// The tensors of a call, and three numbers a channel that mean something else to each pass.
struct Work {
  torch::Tensor input;
  torch::Tensor pooled;   // the output, or its gradient
  torch::Tensor choices;  // of each window
  torch::Tensor gradient;
  std::vector<float> a;
  std::vector<float> b;
  std::vector<float> d;
};

// All but the gradient; the numbers are 0.
Work work_on(const torch::Tensor& input, const torch::Tensor& pooled, const torch::Tensor& choices);

void for_all_rows(Step step, const Work& work);

// Two sums a channel, [2][C]: the same bits on any number of threads.
std::vector<double> sums_of_rows(Step step, const Work& work);

}  // namespace ladder::windows
