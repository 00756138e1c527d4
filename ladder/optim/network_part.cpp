// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/network_part.h"

#include <c10/core/TensorImpl.h>

#include <algorithm>

#include "ladder/comm/c10d_group.h"
#include "ladder/core/error.h"

namespace ladder {
namespace {

// Travels with a tensor, also through Module::to.
struct PartMark : c10::BackendMeta {
  PartMark(ProcessGroup of, std::optional<ShardOfParameter> own)
      : group(std::move(of)), shard(std::move(own)) {}
  ProcessGroup group;
  std::optional<ShardOfParameter> shard;
};

PartMark* mark_of(const torch::Tensor& parameter) {
  return dynamic_cast<PartMark*>(parameter.unsafeGetTensorImpl()->get_backend_meta());
}

}  // namespace

void mark_as_part(const std::vector<torch::Tensor>& parameters, const ProcessGroup& group,
                  const std::optional<ShardOfParameter>& shard) {
  if (group.world_size() == 1 && !shard) return;
  const auto mark = c10::make_intrusive<PartMark>(group, shard);
  for (const auto& parameter : parameters) parameter.unsafeGetTensorImpl()->set_backend_meta(mark);
}

std::optional<ProcessGroup> group_of_parts(const std::vector<torch::Tensor>& parameters) {
  for (const auto& parameter : parameters) {
    if (const auto* const mark = mark_of(parameter)) return mark->group;
  }
  return std::nullopt;
}

std::optional<ProcessGroup> only_group_of_parts(std::string_view where,
                                                const std::vector<torch::Tensor>& parameters) {
  const auto group = group_of_parts(parameters);
  const bool is_only = !group || std::ranges::all_of(parameters, [&](const auto& parameter) {
    const auto* const mark = mark_of(parameter);
    return mark != nullptr && c10d_group(mark->group) == c10d_group(*group);
  });
  if (is_only) return group;
  throw UsageError::conflict(where, "some parameters are divided over the ranks, others are not",
                             "call it for each network by itself");
}

const ShardOfParameter* shard_of(const torch::Tensor& parameter) {
  const auto* const mark = mark_of(parameter);
  return mark == nullptr || !mark->shard ? nullptr : &*mark->shard;
}

void require_whole(std::string_view where, const std::vector<torch::Tensor>& parameters) {
  for (const auto& parameter : parameters) {
    const auto* const shard = shard_of(parameter);
    if (shard == nullptr || shard->is_whole) continue;
    throw UsageError::conflict(where, "the parameters are divided among the ranks",
                               "call unshard() of FullyShardedDataParallel on all ranks before");
  }
}

void require_no_parts(std::string_view where, const std::vector<torch::Tensor>& parameters,
                      const ProcessGroup& group) {
  const auto cut_over = group_of_parts(parameters);
  if (!cut_over || c10d_group(*cut_over) != c10d_group(group)) return;
  throw UsageError::conflict(
      where,
      "the parameters are divided over these ranks already, by PipelineStage or "
      "FullyShardedDataParallel",
      "divide them once; replicas of a part need a group of their own");
}

}  // namespace ladder
