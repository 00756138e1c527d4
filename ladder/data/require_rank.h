// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace ladder {

// What every sampler checks that gives one rank its part. `who` begins the message.

// Throws UsageError unless 0 <= rank < world_size.
void require_rank(std::string_view who, std::int64_t rank, std::int64_t world_size);

// Throws UsageError if what is to be divided is one rank's part already: `shared_by` is the number
// of ranks that share it.
void require_whole(std::string_view who, std::int64_t shared_by);

}  // namespace ladder
