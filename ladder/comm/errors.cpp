// SPDX-License-Identifier: Apache-2.0
#include "ladder/comm/errors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ladder/launch/failure_kind.h"
#include "ladder/launch/rank_status.h"

namespace ladder {

DistributedError collective_failed(std::string_view operation, int rank, int world_size,
                                   std::string_view cause, std::string_view hint) {
  const auto where =
      fmt::format("{} on rank {} of {}{}", operation, rank, world_size, in_current_step());
  if (!hint.empty()) return DistributedError::of(where, "", cause, hint);
  return DistributedError::of(
      where, "", cause,
      fmt::format("another rank ended or is late: see its last lines; {}", step_after_failure()));
}

std::string ranks_text(std::span<const int> ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

DistributedError ranks_missing(std::span<const int> missing, int world_size,
                               std::chrono::milliseconds timeout) {
  const auto ranks = fmt::format("{} of {}", ranks_text(missing), world_size);
  return DistributedError::of("rendezvous", "", timed_out(timeout, ranks),
                              "see the output of those ranks; were WORLD_SIZE ranks started?");
}

DistributedError another_tensor_sent(int rank, int world_size, int from, std::string_view sent,
                                     std::string_view expected) {
  return collective_failed(
      "recv", rank, world_size,
      fmt::format("rank {} sent {}, this rank expected {}", from, sent, expected),
      "give send and recv tensors of one dtype and shape");
}

DistributedError no_rendezvous(std::string_view address, std::string_view cause,
                               std::string_view hint) {
  const auto where = fmt::format("store at {}", address);
  if (!hint.empty()) return DistributedError::of(where, "", cause, hint);
  return DistributedError::of(
      where, "", cause,
      address.starts_with('/')
          ? "another process locks or removes the file: name a new one for each run"
          : "rank 0 or torchrun serves it: it has not begun, hangs or has ended: see its output, "
            "and compare MASTER_ADDR and MASTER_PORT");
}

std::string timed_out(std::chrono::milliseconds timeout, std::string_view waiting_for) {
  return fmt::format("timed out after {} s waiting for {}",
                     static_cast<double>(timeout.count()) / 1000.0, waiting_for);
}

}  // namespace ladder
