// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ladder/core/error.h"

namespace ladder {

// What this process knows of the other ranks, for errors about a lost one: a collective fails with
// the backend's text, which names a connection and no rank. The process group fills it in.
struct KnownRanks {
  int own = 0;
  std::vector<std::string> addresses;  // of each rank, as the backend's texts have them
  std::vector<int> ended;              // ranks of this machine whose processes have ended
};

// Of this process. The group of an error may be gone when call_and_report prints it.
inline KnownRanks& known_ranks() {
  static KnownRanks ranks;
  return ranks;
}

// The lost ranks: those that ended, else those at the address in `text`, a message of the backend,
// such as "Connection closed by peer [10.0.0.2]:4321". Empty if nothing is known.
std::vector<int> lost_ranks(std::string_view text);

// "rank 3 has ended", "ranks 2, 3 have ended", or "lost rank 3 at 10.0.0.2"; "" if nothing is
// known.
std::string lost_ranks_text(std::string_view text);

// The next step after an error of a rank: "torchrun will restart the ranks (restart 1 of 5)", by
// torchrun's variables.
std::string step_after_failure();

// The error of a collective or a store that lost another rank, in the current_step() if there is
// one. `text` is one line of the backend's message. Names the lost ranks if they are known, and
// what the launcher does next.
DistributedError peer_lost(std::string_view text);

}  // namespace ladder
