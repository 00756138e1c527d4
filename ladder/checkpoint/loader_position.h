// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ladder/io/json.h"

namespace ladder {

// The position of a loader in its epoch, as a checkpoint holds it (sampler.json).

// The key of the description of the data set.
inline constexpr const char* kDataOfPosition = "data";

// For a saved position: throws UsageError, beginning with `origin`, unless the run that wrote it
// had the same "micro_batch"; 0 = sums in float.
void require_micro_batch(const JsonReader& position, std::string_view origin,
                         std::int64_t micro_batch);

// The same for the description of the data set, "data": another one is a UsageError within an
// epoch, and a warning of rank 0 between two.
void require_same_data(const JsonReader& position, std::string_view origin,
                       const std::string& description, bool within_epoch, int rank);

}  // namespace ladder
