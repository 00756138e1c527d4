// SPDX-License-Identifier: Apache-2.0
// Slow ranks are waited for; lost, stopped and stuck ones are not.
#include "ladder/comm/run_together.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <stdexcept>
#include <string>
#include <thread>

#include "ladder/comm/process_group.h"
#include "ladder/core/clock.h"
#include "ladder/core/error.h"
#include "ladder/core/log.h"
#include "ladder/core/rank_status.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace ladder {
namespace {

using std::chrono::milliseconds;

constexpr RanksOptions kShort = {.backend = "shm", .timeout = milliseconds(1000)};

// Takes its time, as a slow disk does.
void work_for(milliseconds time, bool with_progress = true) {
  const auto end = steady_milliseconds() + time.count();
  while (steady_milliseconds() < end) {
    std::this_thread::sleep_for(milliseconds(50));
    if (with_progress) note_progress();
  }
}

TEST(RunOnAll, WaitsForAllAndPassesAFailureOn) {
  run_ranks(3, [](const ProcessGroup& group) {
    int ran = 0;
    run_or_fail_together(group, "counting", [&] { ++ran; });
    EXPECT_EQ(ran, 1);
    const auto fail_on = [&](int first, int second) {
      run_or_fail_together(group, "reading", [&] {
        if (group.rank() != first && group.rank() != second) return;
        throw std::runtime_error("failure of rank " + std::to_string(group.rank()));
      });
    };
    if (group.rank() == 1) {
      EXPECT_ERROR(fail_on(1, 1), std::runtime_error, "failure of rank 1");
    } else {
      EXPECT_ERROR(fail_on(1, 1), DistributedError, "rank 1 failed in reading");
    }
    if (group.rank() == 0) {
      EXPECT_ERROR(fail_on(1, 2), DistributedError, "rank 1 failed in reading");
    } else {
      EXPECT_ERROR(fail_on(1, 2), std::runtime_error,
                   "failure of rank " + std::to_string(group.rank()));
    }
    run_or_fail_together(group, "counting", [&] { ++ran; });  // the group is as before
    EXPECT_EQ(ran, 2);
  });
}

void expect_slow_rank_is_waited_for(const ProcessGroup& group, milliseconds time,
                                    const std::string& expected) {
  const MessageFile lines;
  std::FILE* stream = fdopen(dup(lines.fd()), "w");
  const Log log({.rank = group.rank(), .world_size = 2, .stream = stream});
  const auto work = [&] {
    if (group.rank() == 1) work_for(time);
  };
  SlowLog slow("saving out", log);
  run_or_fail_together(group, "working", work, {.slow = &slow});
  std::fclose(stream);
  EXPECT_EQ(lines.text(), group.rank() == 0 ? expected : "");
  group.barrier();  // it is as before
}

TEST(RunTogether, WaitsForASlowRankPastTheTimeoutAndLogsIt) {
  run_ranks(
      2,
      [](const ProcessGroup& group) {
        expect_slow_rank_is_waited_for(group, milliseconds(2500),
                                       "[rank 0] saving out: 2 s so far, rank 1\n");
      },
      kShort);
  auto gloo = kShort;
  gloo.backend = "gloo";
  run_ranks(
      2,
      [](const ProcessGroup& group) {
        expect_slow_rank_is_waited_for(group, milliseconds(1500), "");
      },
      gloo);
}

TEST(RunTogether, OneRankLogsItsOwnTime) {
  run_alone([] {
    const MessageFile lines;
    std::FILE* stream = fdopen(dup(lines.fd()), "w");
    const Log log({.stream = stream});
    SlowLog slow("saving out", log);
    const auto work = [] { work_for(milliseconds(1200)); };
    run_or_fail_together(ProcessGroup::single(), "first", work, {.slow = &slow});
    run_or_fail_together(ProcessGroup::single(), "then", work, {.slow = &slow});
    std::fclose(stream);
    EXPECT_EQ(lines.text(), "saving out: 2 s so far\n");
  });
}

TEST(RunTogether, GivesUpOnARankWithoutProgress) {
  run_ranks(
      2,
      [](const ProcessGroup& group) {
        const auto started = steady_milliseconds();
        const auto work = [&] {
          if (group.rank() == 1) work_for(milliseconds(2500), /*with_progress=*/false);
        };
        EXPECT_ERROR(run_or_fail_together(group, "save_state", work, {.deadline = milliseconds(1)}),
                     DistributedError,
                     "save_state on rank " + std::to_string(group.rank()) +
                         " of 2: rank 1 made no progress for 1 s; hint: does its disk answer?");
        const auto took = steady_milliseconds() - started;
        EXPECT_EQ(took >= 2500, group.rank() == 1) << took;
      },
      kShort);
}

TEST(RunTogether, MissesARankThatStopsInItsWork) {
  const auto end = end_of_group(
      2,
      [](const ProcessGroup& group) {
        const auto work = [&] {
          if (group.rank() == 1) std::raise(SIGSTOP);
        };
        run_or_fail_together(group, "working", work);
      },
      kShort);
  EXPECT_EQ(end.exit_code, 4);
  EXPECT_NE(end.messages.find("timed out after 1 s waiting for rank 1"), std::string::npos)
      << end.messages;
}

}  // namespace
}  // namespace ladder
