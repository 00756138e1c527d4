// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <functional>

#include "exercises/exercise.h"
#include "ladder/data/data_loader.h"
#include "ladder/monitor/evaluation.h"
#include "ladder/nn/model.h"

namespace ladder::exercises {

// The output of the network for a batch. Draws the dropout masks of the batch.
using Forward = std::function<torch::Tensor(const Batch& batch)>;

struct Loop {
  // Trains for one epoch. Returns the mean loss over its samples.
  double (*train_epoch)(Model& model, const DataLoader& loader, torch::optim::Optimizer& optimizer,
                        const Forward& forward, const LossSum& loss_sum);
};

}  // namespace ladder::exercises
