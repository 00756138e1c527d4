// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ladder/core/precision.h"

namespace ladder {

// See fully_sharded_data_parallel.h; without LibTorch's headers, for option structs.
struct FullyShardedOptions {
  // Whether a unit is divided again between its forward and its backward (stage 3 of ZeRO), or
  // stays whole (stage 2): less memory, or fewer bytes sent. Unset: all units but the outermost,
  // whose backward comes next.
  std::optional<bool> reshard_after_forward;
  // Begin to gather the next unit while one computes. Of no use in shared memory, whose collectives
  // are synchronous.
  bool prefetch = true;
  // Of the whole parameters, in forward and backward; those that the optimizer steps stay float32.
  // Inputs are converted, the output is float32. One rank alone computes in float32. Gradients are
  // added over the ranks in float32.
  Precision param_precision = Precision::kFp32;
  // Names of the Models in the network that are units; unset = each Model in it.
  std::optional<std::vector<std::string>> units;
};

}  // namespace ladder
