// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "ladder/comm/process_group.h"

namespace ladder {

// Collectives over texts, of any length on each rank.

// The text of rank `from`, on every rank.
std::string broadcast_text(std::string text, const ProcessGroup& group, int from = 0);

// The texts of all ranks, in rank order, on every rank.
std::vector<std::string> all_gather_text(std::string text, const ProcessGroup& group);

}  // namespace ladder
