// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <string_view>

#include "ladder/core/error.h"

namespace ladder {

// Errors that several files of comm/ throw. Each `cause` is one line.

// A collective that another rank made fail. Names the current_step(). The default hint is for a
// rank that ended or is late, and ends with what the launcher does next (launch/failure_kind.h).
DistributedError collective_failed(std::string_view operation, int rank, int world_size,
                                   std::string_view cause, std::string_view hint = "");

// "rank 1", "ranks 1, 3"
std::string ranks_text(std::span<const int> ranks);

// Ranks that did not reach a rendezvous or a barrier before the timeout. `missing` is not empty.
DistributedError ranks_missing(std::span<const int> missing, int world_size,
                               std::chrono::milliseconds timeout);

// recv() of a tensor other than the one that rank `from` sent. Each as "Float [2, 3]".
DistributedError another_tensor_sent(int rank, int world_size, int from, std::string_view sent,
                                     std::string_view expected);

// A store that cannot be opened at `address` or does not answer. The default hint is for the
// process that serves it, or for the file if `address` is a path.
DistributedError no_rendezvous(std::string_view address, std::string_view cause,
                               std::string_view hint = "");

// "timed out after 0.5 s waiting for rank 1"
std::string timed_out(std::chrono::milliseconds timeout, std::string_view waiting_for);

}  // namespace ladder
