// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include "exercises/exercise.h"
#include "ladder/monitor/evaluation.h"
#include "ladder/nn/model.h"

namespace ladder::exercises {

struct ReplicatedBackward {
  // Backward of the mean loss over all images, on `replicas` copies of the model. Adds the
  // gradients to those of `model`. Returns the loss.
  double (*backward)(Model& model, const torch::Tensor& images, const torch::Tensor& targets,
                     int replicas, const LossSum& loss_sum);
};

}  // namespace ladder::exercises
