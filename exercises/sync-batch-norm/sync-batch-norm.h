// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include "exercises/exercise.h"
#include "ladder/comm/process_group.h"

namespace ladder::exercises {

// What forward keeps for backward.
struct SavedForBackward {
  torch::Tensor normalized;   // [N, C], the result of forward
  torch::Tensor inverse_std;  // [C]
  double count = 0;           // rows of all ranks
};

// x: [N, C], float32; ranks may have different numbers of rows N >= 1.
struct SyncBatchNormalization {
  // (x - mean) / sqrt(variance + eps), per column, with mean and variance over the rows of all
  // ranks.
  torch::Tensor (*forward)(SavedForBackward& saved, const torch::Tensor& x, double eps,
                           const ProcessGroup& group);

  // The gradient of x for a gradient of the result. The loss is the sum of those of all ranks.
  torch::Tensor (*backward)(const SavedForBackward& saved, const torch::Tensor& gradient,
                            const ProcessGroup& group);
};

}  // namespace ladder::exercises
