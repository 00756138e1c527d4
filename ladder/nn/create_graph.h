// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <string_view>

#include "ladder/core/error.h"

namespace ladder {

// For the backward of a torch::autograd::Function that computes without autograd, such as a kernel.
// A caller that differentiates its result again, as a gradient penalty does with create_graph,
// would get zero for it. Throws UsageError in place of that.
inline void refuse_create_graph(std::string_view operation) {
  if (!torch::GradMode::is_enabled()) return;
  throw UsageError::conflict(operation, "its gradient is not differentiable (create_graph)",
                             "use the operations of LibTorch, on one device per process");
}

}  // namespace ladder
