// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/intrusive_ptr.h>

#include "ladder/comm/c10d_group.h"

namespace ladder {

// The backend of CPU tensors for c10d_group.cpp.

// Gloo; with setup.backend "shm", Gloo whose collectives and transfers of CPU tensors use a
// SharedMemory. Sets setup.backend to "gloo" if the ranks share no memory. Waits for all ranks.
c10::intrusive_ptr<c10d::Backend> make_gloo(ProcessGroup::Setup& setup, const C10dStore& store);

// The result of an operation that has ended.
c10::intrusive_ptr<c10d::Work> completed(const std::vector<at::Tensor>& tensors);

}  // namespace ladder
