// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "ladder/comm/process_group.h"
#include "ladder/data/distributed_sampler.h"
#include "ladder/exact/exact_data_parallel.h"
#include "ladder/nn/model.h"
#include "tests/support/threads.h"
#include "tests/support/training.h"

namespace ladder {

inline std::shared_ptr<ExactDataParallel> exact(const std::shared_ptr<Model>& model,
                                                const ProcessGroup& group,
                                                std::int64_t micro_batch = 4) {
  return std::make_shared<ExactDataParallel>(model, group,
                                             ExactDataParallelOptions{.micro_batch = micro_batch});
}

// One rank's slice: whole micro-batches, as ShardedBatchSampler divides.
inline Batch exact_slice_of(const Batch& whole, const ProcessGroup& group,
                            std::int64_t micro_batch = 4) {
  const auto size = whole.size();
  const ShardedBatchSampler sampler(std::make_shared<SequentialSampler>(size),
                                    {.batch_size = size,
                                     .rank = group.rank(),
                                     .world_size = group.world_size(),
                                     .micro_batch = micro_batch});
  const auto plan = sampler.batches_of(0).at(0);
  auto slice = part_of(whole, plan.positions.empty() ? 0 : plan.positions.front(),
                       std::ssize(plan.positions), group.world_size());
  slice.micro_batch = micro_batch;
  return slice;
}

// All that training changes: parameters, then buffers.
inline torch::Tensor flat_state(const torch::nn::Module& model) {
  auto tensors = model.parameters();
  const auto buffers = model.buffers();
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  return flat(tensors);
}

}  // namespace ladder
