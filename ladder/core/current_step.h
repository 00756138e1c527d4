// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace ladder {

// The step of the optimizer that this process is in, counted from 1; 0 = in no training. What is
// said of a rank that is lost names it. The training loops set it; that costs one store.
std::int64_t current_step();
void set_current_step(std::int64_t step);

// Keeps the number at `place` from now on, as in memory that the process which started this one
// sees too. Call it before there are threads; `place` must outlive the process.
void keep_current_step_at(std::atomic<std::int64_t>& place);

}  // namespace ladder
