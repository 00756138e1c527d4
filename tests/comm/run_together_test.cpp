// SPDX-License-Identifier: Apache-2.0
// Slow ranks are waited for; lost ones are not.
#include "ladder/comm/run_together.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <stdexcept>
#include <string>
#include <thread>

#include "ladder/comm/process_group.h"
#include "ladder/core/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace ladder {
namespace {

using std::chrono::milliseconds;

TEST_ON_RANKS(RunOnAll, WaitsForAllAndPassesAFailureOn, 3) {
  int ran = 0;
  run_or_fail_together(group, "counting", [&] { ++ran; });
  EXPECT_EQ(ran, 1);
  const auto fail_on = [&](int first, int second) {
    run_or_fail_together(group, "reading", [&] {
      if (group.rank() != first && group.rank() != second) return;
      throw std::runtime_error("failure of rank " + std::to_string(group.rank()));
    });
  };
  const auto expect_failure = [&](int first, int second) {
    if (group.rank() == first || group.rank() == second) {
      EXPECT_ERROR(fail_on(first, second), std::runtime_error,
                   "failure of rank " + std::to_string(group.rank()));
    } else {
      EXPECT_ERROR(fail_on(first, second), DistributedError, "rank 1 failed in reading");
    }
  };
  expect_failure(1, 1);
  expect_failure(1, 2);
  run_or_fail_together(group, "counting", [&] { ++ran; });  // the group is as before
  EXPECT_EQ(ran, 2);
}

TEST(RunTogether, WaitsForASlowRankPastTheTimeoutOfTheGroup) {
  for (const auto* backend : {"shm", "gloo"}) {
    run_ranks(2,
              [](const ProcessGroup& group) {
                run_or_fail_together(group, "working", [&] {
                  if (group.rank() == 1) std::this_thread::sleep_for(milliseconds(1500));
                });
                group.barrier();  // it is as before
              },
              {.backend = backend, .timeout = milliseconds(1000)});
  }
}

TEST(RunTogether, MissesARankThatEndsInItsWork) {
  const auto end = end_of_group(2, [](const ProcessGroup& group) {
    std::signal(SIGTERM, SIG_IGN);  // of spawn; here the other rank must detect the loss itself
    run_or_fail_together(group, "working", [&] {
      if (group.rank() == 1) std::raise(SIGKILL);
    });
  });
  expect_ended_with(end, 4, "[rank 0] error: all_reduce on rank 0 of 2: ");
}

}  // namespace
}  // namespace ladder
