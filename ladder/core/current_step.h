// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace ladder {

// The optimizer step that this process is in, counted from 1; 0 = outside a training. Errors about
// a lost rank name it. The training loops set it; that costs one store.
std::int64_t current_step();
void set_current_step(std::int64_t step);

// ", step 58" for error messages; "" outside a training.
std::string in_current_step();

// Stores the number at `place` from now on, such as in memory that the parent process reads too.
// Call it before any thread starts; `place` must outlive the process.
void keep_current_step_at(std::atomic<std::int64_t>& place);

}  // namespace ladder
