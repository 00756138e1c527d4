// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "exercises/exercise.h"

namespace ladder::exercises {

// A training that can be resumed.
struct Resumable {
  std::function<std::optional<std::int64_t>()> load;  // loads the snapshot if there is one; returns
                                                      // its number of finished steps
  std::function<void(std::int64_t step)> run_step;    // steps count from 0
  std::function<void(std::int64_t finished)> save;    // writes a snapshot after so many steps
};

struct Launch {
  // Runs `run(rank)` in `world_size` processes at once. Returns 0, or the exit code of the rank
  // that failed first.
  int (*launch)(int world_size, int port, const std::function<int(int rank)>& run);

  // Trains up to `steps` steps, with a snapshot every `save_every` steps.
  void (*train)(std::int64_t steps, std::int64_t save_every, const Resumable& training);
};

}  // namespace ladder::exercises
