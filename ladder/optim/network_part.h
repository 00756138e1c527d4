// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/accumulate.h>
#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "ladder/comm/process_group.h"

namespace ladder {

// Parameters of a network that is divided over the ranks of a group: those of one stage of a
// pipeline, or shards of all. A decision that depends on all gradients, such as the norm to clip or
// a step to skip, is one of the group: what makes it (clip_grad_norm_, GradScaler) looks for this
// mark, and is then a collective.

// What FullyShardedDataParallel leaves of a parameter to this rank: elements in the order of its
// memory.
struct ShardOfParameter {
  std::vector<std::int64_t> sizes;  // of the whole parameter
  std::vector<std::int64_t> strides;
  std::int64_t begin;
  std::int64_t count;
  bool is_whole;  // at present

  std::int64_t numel() const { return c10::multiply_integers(sizes); }
};

// PipelineStage and FullyShardedDataParallel mark their parameters. The mark stays with a
// parameter; that of one rank's stage is left out.
void mark_as_part(const std::vector<torch::Tensor>& parameters, const ProcessGroup& group,
                  const std::optional<ShardOfParameter>& shard = std::nullopt);

// Null: not divided by elements.
const ShardOfParameter* shard_of(const torch::Tensor& parameter);

// Throws UsageError, which begins with `where`, for a parameter of which this rank has a shard at
// present: FullyShardedDataParallel::unshard makes it whole.
void require_whole(std::string_view where, const std::vector<torch::Tensor>& parameters);

// The group of the first marked parameter; empty for a network that this rank has as a whole.
std::optional<ProcessGroup> group_of_parts(const std::vector<torch::Tensor>& parameters);

// The same, for a sum over all parameters. Throws UsageError, which begins with `where`, if some
// have no mark or that of another group: their share of the sum would count once per rank.
std::optional<ProcessGroup> only_group_of_parts(std::string_view where,
                                                const std::vector<torch::Tensor>& parameters);

// Throws UsageError, which begins with `where`, if `group` is that of the parts: its ranks have
// other parameters, so nothing of them can be averaged or divided.
void require_no_parts(std::string_view where, const std::vector<torch::Tensor>& parameters,
                      const ProcessGroup& group);

}  // namespace ladder
