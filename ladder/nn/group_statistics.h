// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/custom_class.h>
#include <torch/types.h>

#include <cstdint>
#include <utility>

#include "ladder/comm/process_group.h"
#include "ladder/core/error.h"

namespace ladder {

// What the operations share that take a BatchNorm's statistics over the batches of all ranks.

// Gathered and added up in rank order: equal bits on all ranks, and on Gloo faster than all_reduce.
inline torch::Tensor sum_of_ranks(const torch::Tensor& local, const ProcessGroup& group) {
  return group.all_gather_into_tensor(local).sum(0);
}

// Throws UsageError unless a channel has more than one value. All ranks see the same count, so all
// throw or none does.
inline void require_a_batch(double count) {
  if (count > 1.0) return;
  throw UsageError::out_of_range("BatchNorm", static_cast<std::int64_t>(count),
                                 "more than one value a channel, over all ranks, while training",
                                 "use a larger batch");
}

// Carries the group from forward to backward: IValue::make_capsule and toCapsule.
struct GroupHolder : torch::CustomClassHolder {
  explicit GroupHolder(ProcessGroup process_group) : group(std::move(process_group)) {}
  ProcessGroup group;
};

}  // namespace ladder
