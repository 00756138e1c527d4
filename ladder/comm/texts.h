// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ladder/comm/process_group.h"

namespace ladder {

// Collectives over texts, of any length on each rank.

// The text of rank `from`, on every rank.
std::string broadcast_text(std::string text, const ProcessGroup& group, int from = 0);

// The texts of all ranks, in rank order, on every rank.
std::vector<std::string> all_gather_text(std::string text, const ProcessGroup& group);

// The first line in which the ranks disagree.
struct Disagreement {
  std::size_t line;      // its number, from 0
  std::string expected;  // "weight Float [3, 2], as on rank 0"
  std::string got;       // "weight Float [4, 2] on ranks 1, 3", the first other line and its ranks
};

// Compares lines, without '\n' in them; the ranks may have different numbers of lines. A collective
// of 32 bytes if all agree. If not, the ranks exchange the texts, and get the same result.
std::optional<Disagreement> first_disagreement(const std::vector<std::string>& lines,
                                               const ProcessGroup& group);

// The same, and every rank throws the same DistributedError, which begins with `where`.
void require_agreement(const ProcessGroup& group, std::string_view where,
                       const std::vector<std::string>& lines, std::string_view hint);

}  // namespace ladder
