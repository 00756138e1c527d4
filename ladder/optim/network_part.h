// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <optional>
#include <string_view>
#include <vector>

#include "ladder/comm/process_group.h"

namespace ladder {

// Parameters of one stage of a network that is cut over the ranks of a group. A decision that
// depends on all gradients, such as the norm to clip or a step to skip, is one of the group: what
// makes it (clip_grad_norm_, GradScaler) looks for this mark, and is then a collective.

// PipelineStage marks its parameters. The mark stays with a parameter; a group of one rank has
// none.
void mark_as_part(const std::vector<torch::Tensor>& parameters, const ProcessGroup& group);

// The group of the first marked parameter; empty for a network that this rank has as a whole.
std::optional<ProcessGroup> group_of_parts(const std::vector<torch::Tensor>& parameters);

// Throws UsageError, which begins with `where`, if `group` is that of the parts: its ranks have
// other layers, so nothing of them can be averaged or divided.
void require_no_parts(std::string_view where, const std::vector<torch::Tensor>& parameters,
                      const ProcessGroup& group);

}  // namespace ladder
