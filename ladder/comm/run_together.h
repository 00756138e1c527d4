// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

#include "ladder/comm/process_group.h"

namespace ladder {

// Runs `run` on this rank and waits until all ranks have run theirs, so that no rank waits for one
// that failed alone, for example at a full disk. A collective; `run` itself must call none.
//
// A slow disk is not a lost rank: the ranks wait for kSaveTimeout (launch/rank_status.h), or for
// the timeout of the group if that is longer. A rank that ends is noticed as in any collective.
//
// Rethrows the error of this rank; for an error on another, throws a DistributedError that names
// the rank.
void run_or_fail_together(const ProcessGroup& group, std::string_view operation,
                          const std::function<void()>& run);

// The same for work of rank 0 alone, such as writing a file.
void on_rank_0(const ProcessGroup& group, std::string_view operation, const auto& run) {
  run_or_fail_together(group, operation, [&] {
    if (group.rank() == 0) run();
  });
}

}  // namespace ladder
