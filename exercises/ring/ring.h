// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include "exercises/exercise.h"
#include "ladder/comm/process_group.h"

namespace ladder::exercises {

struct Ring {
  // Replaces `tensor`, one-dimensional, by its sum over all ranks.
  void (*sum_over_ring)(torch::Tensor& tensor, const ProcessGroup& group);
};

}  // namespace ladder::exercises
