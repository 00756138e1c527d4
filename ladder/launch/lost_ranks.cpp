// SPDX-License-Identifier: Apache-2.0
#include "ladder/launch/lost_ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>

#include "ladder/core/environment.h"
#include "ladder/core/rank_status.h"

namespace ladder {
namespace {

std::string ranks_of(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

// The address of other ranks that `text` names in brackets; "" if none, or if this rank has it too.
std::string address_in(std::string_view text) {
  const auto& known = known_ranks();
  for (const auto& address : known.addresses) {
    const bool is_own = address == known.addresses.at(static_cast<std::size_t>(known.own));
    if (!is_own && text.find(fmt::format("[{}]", address)) != text.npos) return address;
  }
  return "";
}

}  // namespace

std::vector<int> lost_ranks(std::string_view text) {
  const auto& known = known_ranks();
  if (!known.ended.empty()) return known.ended;
  std::vector<int> ranks;
  const auto address = address_in(text);
  for (std::size_t rank = 0; rank < known.addresses.size(); ++rank) {
    if (!address.empty() && known.addresses[rank] == address) {
      ranks.push_back(static_cast<int>(rank));
    }
  }
  return ranks;
}

std::string lost_ranks_text(std::string_view text) {
  const auto ranks = lost_ranks(text);
  if (ranks.empty()) return "";
  if (known_ranks().ended.empty()) {
    return fmt::format("lost {}{} at {}", ranks.size() == 1 ? "" : "one of ", ranks_of(ranks),
                       address_in(text));
  }
  return fmt::format("{} {} ended", ranks_of(ranks), ranks.size() == 1 ? "has" : "have");
}

std::string step_after_failure() {
  constexpr const char* kByHand = "start the program again; with checkpoints it can resume";
  try {
    const auto most = environment_integer("TORCHELASTIC_MAX_RESTARTS", 0);
    if (!most) return kByHand;
    if (*most == 0) return "torchrun does not restart the ranks (--max-restarts 0)";
    const auto done = environment_integer("TORCHELASTIC_RESTART_COUNT", 0).value_or(0);
    if (done < *most) {
      return fmt::format("torchrun will restart the ranks (restart {} of {})", done + 1, *most);
    }
    return fmt::format("no restarts are left ({} of {} done)", done, *most);
  } catch (const UsageError&) {  // a malformed variable
    return kByHand;
  }
}

DistributedError peer_lost(std::string_view text) {
  const auto where = "collective" + in_current_step();
  const auto lost = lost_ranks_text(text);
  if (lost.empty()) {
    return DistributedError::of(where, "all ranks to take part", fmt::format("\"{}\"", text),
                                "see the first error of the other ranks; " + step_after_failure());
  }
  return DistributedError::of(where, "", fmt::format("{} (\"{}\")", lost, text),
                              "see the last lines of the lost ranks; " + step_after_failure());
}

}  // namespace ladder
