// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/joined_batches.h"

#include <fmt/core.h>

#include "ladder/core/error.h"

namespace ladder {

void JoinedRounds::count_next(bool has_batch) {
  auto count = torch::tensor(has_batch ? 1 : 0, torch::kInt64);
  group_.all_reduce(count);
  next_ = count.item<std::int64_t>();
  if (std::exchange(is_first_, false) && next_ > 0 && next_ < group_.world_size()) {
    throw UsageError::out_of_range(
        "Accelerator", next_,
        fmt::format("a first batch on each of {} processes", group_.world_size()),
        "use fewer processes or smaller batches");
  }
}

bool JoinedRounds::begin(bool has_batch) {
  if (next_ == 0) return false;
  weight_ = has_batch ? static_cast<double>(group_.world_size()) / static_cast<double>(next_) : 0.0;
  return true;
}

}  // namespace ladder
