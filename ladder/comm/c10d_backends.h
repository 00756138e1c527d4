// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ladder/comm/c10d_group.h"

namespace ladder {

// Gives `group` what carries its tensors; see make_c10d_group.
void set_backends(c10d::ProcessGroup& group, ProcessGroup::Setup& setup, const C10dStore& store);

}  // namespace ladder
