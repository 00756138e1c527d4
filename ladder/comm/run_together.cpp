// SPDX-License-Identifier: Apache-2.0
#include "ladder/comm/run_together.h"

#include <fmt/core.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>

#include "ladder/core/error.h"
#include "ladder/launch/failure_kind.h"
#include "ladder/launch/rank_status.h"

namespace ladder {
namespace {

// Returns the first rank that failed, or the number of ranks.
std::int64_t first_failed(const ProcessGroup& group, bool failed) {
  auto first = torch::tensor(failed ? group.rank() : group.world_size(), torch::kInt64);
  group.all_reduce(first, ReduceOp::kMin,
                   std::max<std::chrono::milliseconds>(kSaveTimeout, group.timeout()));
  return first.item<std::int64_t>();
}

}  // namespace

void run_or_fail_together(const ProcessGroup& group, std::string_view operation,
                          const std::function<void()>& run) {
  std::exception_ptr failure;
  try {
    run();
  } catch (...) {
    failure = std::current_exception();
  }
  std::int64_t first = group.world_size();
  try {
    first = first_failed(group, failure != nullptr);
  } catch (const Error&) {
    if (!failure) throw;  // else the failure of this rank is the cause
  }
  if (failure) std::rethrow_exception(failure);
  if (first == group.world_size()) return;
  throw peer_lost(fmt::format("rank {} failed in {}", first, operation));
}

}  // namespace ladder
