// SPDX-License-Identifier: Apache-2.0
#include "ladder/launch/peer_lost.h"

#include <fmt/core.h>

#include "ladder/core/environment.h"
#include "ladder/launch/rank_status.h"

namespace ladder {

DistributedError peer_lost(std::string_view text) {
  return DistributedError::of("collective" + in_current_step(), "all ranks to take part",
                              fmt::format("\"{}\"", text),
                              "see the first error of the other ranks; " + step_after_failure());
}

std::string step_after_failure() {
  constexpr const char* kByHand = "start the program again; with checkpoints it can resume";
  try {
    const auto most = environment_integer("TORCHELASTIC_MAX_RESTARTS", 0);
    if (!most) return kByHand;
    if (*most == 0) return "torchrun does not restart the ranks (--max-restarts 0)";
    const auto done = environment_integer("TORCHELASTIC_RESTART_COUNT", 0).value_or(0);
    if (done < *most) {
      return fmt::format("torchrun will restart the ranks (restart {} of {})", done + 1, *most);
    }
    return fmt::format("no restarts are left ({} of {} done)", done, *most);
  } catch (const UsageError&) {  // a malformed variable
    return kByHand;
  }
}

}  // namespace ladder
