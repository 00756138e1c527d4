// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "exercises/exercise.h"
#include "ladder/comm/process_group.h"

namespace ladder::exercises {

// What one rank has of the network.
struct Stage {
  // Runs the layers of this rank: [rows, input_width] to [rows, another width].
  std::function<torch::Tensor(const torch::Tensor& input)> forward;
  std::int64_t input_width = 0;
  // The mean over the rows of a micro-batch. On the last rank; empty on others.
  std::function<torch::Tensor(const torch::Tensor& output, const torch::Tensor& targets)> mean_loss;
};

struct MicroBatch {
  std::int64_t rows = 0;  // on every rank
  torch::Tensor inputs;   // [rows, width], on rank 0; undefined on others
  torch::Tensor targets;  // [rows], on the last rank; undefined on others
};

// Adds the gradients of the mean loss over all rows to the parameters of this rank. A collective.
using PipelineStep = void (*)(const Stage& stage, const std::vector<MicroBatch>& micro_batches,
                              const ProcessGroup& group);

struct Pipeline {
  PipelineStep all_forwards_first;        // part 1
  PipelineStep one_forward_one_backward;  // part 2
};

}  // namespace ladder::exercises
