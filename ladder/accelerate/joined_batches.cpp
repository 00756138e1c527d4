// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/joined_batches.h"

#include <fmt/core.h>

#include "ladder/comm/texts.h"
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

void JoinedRounds::require_same(const std::string& digest) {
  if (!first_disagreement({digest}, group_)) return;
  throw UsageError::conflict(
      "Accelerator::prepare", "the processes read other first batches",
      "before each pass, on all processes: torch::manual_seed(seed + epoch)");
}

bool JoinedRounds::begin(bool has_batch) {
  if (next_ == 0) return false;
  rounds_.weight =
      has_batch ? static_cast<double>(group_.world_size()) / static_cast<double>(next_) : 0.0;
  return true;
}

}  // namespace ladder
