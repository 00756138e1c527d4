// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>

#include "ladder/data/inputs.h"

namespace ladder {

// The number of samples over which the loss of a batch is a mean: those of all ranks together.
struct NumItems {
  std::int64_t global = 0;     // samples over all ranks
  std::int64_t processes = 1;  // ranks that share them

  // The loss to differentiate, from the sum over this rank's samples: sum × ranks ÷ global. On one
  // rank that is the mean, to the last bit. On several, gradients averaged over the ranks equal the
  // gradient of the mean over all samples, whatever the size of each rank's part.
  torch::Tensor mean(const torch::Tensor& sum) const {
    const auto scaled = processes == 1 ? sum : sum * static_cast<double>(processes);
    return scaled / static_cast<double>(global);
  }
};

// Some samples of a data set: with several ranks, this rank's part of a batch that all ranks share.
// The part may be empty (N = 0); the rank still takes the step, because the others wait for it.
//
// A Dataset fills inputs and targets; the DataLoader fills the rest.
struct Batch {
  Inputs inputs;                 // N rows each
  torch::Tensor targets;         // N rows; undefined in a data set without targets
  torch::Tensor positions;       // int64 [N] on the CPU: position in the epoch's order that the
                                 // ranks share; repeated samples have positions past its end
  torch::Tensor indices;         // int64 [N] on the CPU: the samples of the data set
  std::int64_t epoch = 0;        // the epoch that the positions belong to; counts from 0
  std::int64_t global_size = 0;  // samples of this batch over all ranks; N on one rank
  std::int64_t world_size = 1;   // ranks that share the batch

  std::int64_t size() const { return targets.defined() ? targets.size(0) : inputs.rows(); }
  NumItems num_items() const { return {global_size, world_size}; }

  // The batch with inputs and targets on `device`; does not copy what is there already, and does
  // not wait for a copy from pinned memory to a GPU.
  Batch to(const torch::Device& device) const {
    const auto moved = [&](const torch::Tensor& tensor) {
      return tensor.defined() ? tensor.to(device, /*non_blocking=*/true) : tensor;
    };
    Batch batch = *this;
    batch.inputs = inputs.map(moved);
    batch.targets = moved(targets);
    return batch;
  }
};

}  // namespace ladder
