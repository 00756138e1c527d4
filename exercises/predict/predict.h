// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "exercises/exercise.h"
#include "exercises/virtual_clock.h"

namespace ladder::exercises {

// A measured all-reduce.
struct TimedAllReduce {
  std::int64_t bytes = 0;
  double seconds = 0;
};

// The parameters of a layer.
struct LayerCost {
  std::int64_t bytes = 0;  // of its gradient
  double forward_seconds = 0;
  double backward_seconds = 0;
};

struct Predict {
  // Alpha and beta of the link, from all-reduces over `ranks`.
  Link (*fit_link)(const std::vector<TimedAllReduce>& all_reduces, int ranks);

  // The seconds of one step with buckets of at least `bucket_bytes`. `layers`: the first one first.
  double (*step_seconds)(const std::vector<LayerCost>& layers, std::int64_t bucket_bytes, int ranks,
                         const Link& link);
};

}  // namespace ladder::exercises
