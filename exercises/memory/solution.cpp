// SPDX-License-Identifier: Apache-2.0
// Exercise 19: the bytes of a rank, before the program runs.
#include "exercises/memory/memory.h"

namespace {

using namespace ladder::exercises;

// `units`: the numbers of weights of the layers, float32.
RankBytes bytes_per_rank(Division division, const std::vector<std::int64_t>& units, int ranks) {
  // solution
  std::int64_t all = 0;
  for (const auto weights : units) all += 4 * weights;
  const std::int64_t share = all / ranks;
  const std::int64_t pass = share * (ranks - 1);  // a reduce-scatter or an all-gather sends this
  if (division == Division::kNothing) {
    return {.weights = all, .gradients = all, .state = 2 * all, .sent = 2 * pass};
  }
  if (division == Division::kOptimizerState) {
    return {.weights = all, .gradients = all, .state = 2 * share, .sent = 3 * pass};
  }
  return {.weights = share, .gradients = share, .state = 2 * share, .sent = 3 * pass};
  // end
}

const Submission submission(Memory{bytes_per_rank});

}  // namespace
