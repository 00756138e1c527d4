// SPDX-License-Identifier: Apache-2.0
#include "ladder/data/require_rank.h"

#include <fmt/format.h>

#include "ladder/core/error.h"

namespace ladder {

void require_rank(std::string_view who, std::int64_t rank, std::int64_t world_size) {
  if (world_size < 1) {
    throw UsageError::out_of_range(fmt::format("{} world_size", who), world_size, "a number >= 1");
  }
  if (rank < 0 || rank >= world_size) {
    throw UsageError::out_of_range(fmt::format("{} rank", who), rank,
                                   fmt::format("0 to {}", world_size - 1),
                                   fmt::format("{} ranks count from 0", world_size));
  }
}

void require_whole(std::string_view who, std::int64_t shared_by) {
  if (shared_by > 1) {
    throw UsageError::conflict(
        who, "its sampler gives one rank's part, and it would divide that again",
        "give it the whole order, such as a RandomSampler, or the batches of all ranks");
  }
}

}  // namespace ladder
