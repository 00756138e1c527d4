// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "exercises/exercise.h"
#include "ladder/data/batch.h"
#include "ladder/parallel/distributed_data_parallel.h"

namespace ladder::exercises {

struct Accumulation {
  std::int64_t window = 4;      // batches per optimizer step
  std::int64_t save_every = 1;  // 1 or more: batches between two saves, at least
  // Saves the weights, but no gradients. `next_batch`: the first batch that a resumed run reads.
  // Never empty.
  std::function<void(std::int64_t next_batch)> save;
};

// Forward of a batch and its loss: the mean over the samples of the batch on all ranks.
using LossOf = std::function<torch::Tensor(const Batch& batch)>;

struct Accumulate {
  // One epoch from batch `first_batch` on. `batches`: this rank's parts, equally many on all ranks.
  void (*train_epoch)(DistributedDataParallel& model, torch::optim::Optimizer& optimizer,
                      const std::vector<Batch>& batches, std::int64_t first_batch,
                      const LossOf& loss_of, const Accumulation& plan);
};

}  // namespace ladder::exercises
