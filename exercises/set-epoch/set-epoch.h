// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "exercises/exercise.h"
#include "ladder/data/data_loader.h"

namespace ladder::exercises {

struct SetEpoch {
  // Reads the epochs from `first_epoch` to `epochs - 1`, and calls `step` for each batch.
  void (*train)(DataLoader& loader, std::int64_t first_epoch, std::int64_t epochs,
                const std::function<void(const Batch& batch)>& step);
};

}  // namespace ladder::exercises
