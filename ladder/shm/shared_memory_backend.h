// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "ladder/comm/c10d_group.h"
#include "ladder/core/error.h"

namespace ladder {

// The backend "shm" of comm/backends.h, for other programs than those of this library.

// Gloo, except that the collectives and transfers that ProcessGroup has use shared memory. Needs
// rank, world_size, timeout and gloo_address of `setup`. A collective; null on all ranks if they do
// not share one machine's memory.
c10::intrusive_ptr<c10d::Backend> make_shared_memory_backend(const ProcessGroup::Setup& setup,
                                                             const C10dStore& store);

// The error for that. `instead`: what to use, for its hint.
UsageError no_common_memory(const std::string& backend, int world_size, const std::string& instead);

}  // namespace ladder
