// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace ladder {

// The key of the description of the data set in sampler.json.
inline constexpr const char* kDataOfPosition = "data";

// The position of a loader in its epoch, as a checkpoint holds it (sampler.json).
struct LoaderPosition {
  std::int64_t epoch = 0;
  std::int64_t batch = 0;    // the next one; 0 between two epochs
  std::int64_t batches = 0;  // per epoch
  std::string order;         // digest of the epoch's order; "" if there is none
};

// Reads a saved position for a run with this data and these micro-batches (0 = sums in float).
// Throws an error that begins with `origin`: DataError for a damaged one, UsageError if the run
// that wrote it had other micro-batches, or within an epoch other data. Between two epochs, other
// data is a warning of rank 0.
LoaderPosition read_loader_position(const nlohmann::json& state, std::string_view origin,
                                    const std::string& data, std::int64_t micro_batch, int rank);

}  // namespace ladder
