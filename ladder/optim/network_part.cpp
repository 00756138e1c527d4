// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/network_part.h"

#include <c10/core/TensorImpl.h>

#include "ladder/comm/c10d_group.h"
#include "ladder/core/error.h"

namespace ladder {
namespace {

// Travels with a tensor, also through Module::to.
struct PartMark : c10::BackendMeta {
  explicit PartMark(ProcessGroup of) : group(std::move(of)) {}
  ProcessGroup group;
};

}  // namespace

void mark_as_part(const std::vector<torch::Tensor>& parameters, const ProcessGroup& group) {
  if (group.world_size() == 1) return;
  const auto mark = c10::make_intrusive<PartMark>(group);
  for (const auto& parameter : parameters) parameter.unsafeGetTensorImpl()->set_backend_meta(mark);
}

std::optional<ProcessGroup> group_of_parts(const std::vector<torch::Tensor>& parameters) {
  for (const auto& parameter : parameters) {
    const auto* const mark =
        dynamic_cast<PartMark*>(parameter.unsafeGetTensorImpl()->get_backend_meta());
    if (mark != nullptr) return mark->group;
  }
  return std::nullopt;
}

void require_no_parts(std::string_view where, const std::vector<torch::Tensor>& parameters,
                      const ProcessGroup& group) {
  const auto cut_over = group_of_parts(parameters);
  if (!cut_over || c10d_group(*cut_over) != c10d_group(group)) return;
  throw UsageError::conflict(
      where, "the parameters are those of one stage of a pipeline: its ranks have other layers",
      "give PipelineStage alone; replicas of a stage need a group of their own");
}

}  // namespace ladder
