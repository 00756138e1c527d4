// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "exercises/exercise.h"
#include "ladder/comm/process_group.h"

namespace ladder::exercises {

struct Rank0 {
  // Ends an epoch: rank 0 logs the mean loss over the samples of all ranks. `loss_sum`, `samples`:
  // of this rank.
  void (*log_epoch)(double loss_sum, std::int64_t samples, const ProcessGroup& group,
                    const std::function<void(double mean_loss)>& log);
};

}  // namespace ladder::exercises
