// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "ladder/core/error.h"

namespace ladder {

// The error of a collective or a store that lost another rank, in the current_step() if there is
// one. `text` is one line of the backend's message. The hint ends with what the launcher does next.
DistributedError peer_lost(std::string_view text);

// The next step after an error of a rank: "torchrun will restart the ranks (restart 1 of 5)", by
// torchrun's variables.
std::string step_after_failure();

}  // namespace ladder
