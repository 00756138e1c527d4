// SPDX-License-Identifier: Apache-2.0
#include "ladder/observe/progress_bar.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>

#include "ladder/core/log.h"
#include "tests/support/captured_stream.h"

namespace ladder {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// A stream, and a clock that only the test advances.
class ProgressTest : public testing::Test {
 protected:
  ProgressOptions options(std::int64_t total, bool terminal) {
    return {.total = total,
            .label = "epoch 1/3",
            .terminal = terminal,
            .stream = stream_.get(),
            .clock = [this] { return now_; }};
  }

  CapturedStream stream_;
  double now_ = 1000.0;
};

TEST_F(ProgressTest, AFileGetsALineATenthOfTheEpoch) {
  ProgressBar progress(options(938, false));
  int lines = 0;
  for (std::int64_t step = 1; step <= 938; ++step) {
    progress.update(step, step * 64, 0.5);
    if (!stream_.next_write().empty()) ++lines;
  }
  progress.finish();
  EXPECT_EQ(lines, 10);
  EXPECT_EQ(stream_.text(), "");
}

TEST_F(ProgressTest, AShortEpochGetsALineAStepAndSeveralTenthsAtOnceOneLine) {
  ProgressBar progress(options(3, false));
  for (std::int64_t step = 1; step <= 3; ++step) progress.update(step, step, 1.0);
  EXPECT_EQ(stream_.text(),
            "epoch 1/3 1/3  loss 1.0000\nepoch 1/3 2/3  loss 1.0000\nepoch 1/3 3/3  loss 1.0000\n");
  ProgressBar longer(options(100, false));
  longer.update(55, 55, 1.0);
  longer.update(59, 59, 1.0);
  EXPECT_EQ(stream_.text(), "epoch 1/3 55/100  loss 1.0000\n");
}

TEST_F(ProgressTest, ALineShowsLossSpeedAndRemainingTime) {
  ProgressBar progress(options(100, false));
  now_ += 2.0;
  progress.update(20, 1280, 0.23104);  // 640 samples/s; 80 steps at 0.1 s are left
  EXPECT_EQ(stream_.text(), "epoch 1/3 20/100  loss 0.2310  640 samples/s  eta 0:08\n");
}

TEST_F(ProgressTest, RemainingTimeHasHoursOnlyIfNeeded) {
  ProgressBar progress(options(100, false));
  now_ += 60.0;
  progress.update(50, 60, kUnknown);
  now_ += 7265.0;
  progress.update(100, 7325, kUnknown);
  ProgressBar slow(options(2, false));
  now_ += 3725.0;
  slow.update(1, 3725, kUnknown);
  EXPECT_EQ(stream_.text(),
            "epoch 1/3 50/100  1 samples/s  eta 1:00\n"
            "epoch 1/3 100/100  1 samples/s  eta 0:00\n"
            "epoch 1/3 1/2  1 samples/s  eta 1:02:05\n");
}

TEST_F(ProgressTest, AnInfiniteLossIsShownAndAnUnknownOneIsNot) {
  ProgressBar progress(options(2, false));
  progress.update(1, 64, kUnknown);
  progress.update(2, 64, INFINITY);
  EXPECT_EQ(stream_.text(), "epoch 1/3 1/2\nepoch 1/3 2/2  loss inf\n");
}

TEST_F(ProgressTest, ATerminalLineIsRedrawnInPlace) {
  ProgressBar progress(options(4, true));
  now_ += 1.0;
  progress.update(1, 64, 2.0);
  now_ += 1.0;
  progress.update(2, 128, 1.0);
  EXPECT_EQ(stream_.next_write(),
            "\repoch 1/3 [====>           ] 1/4  loss 2.0000  64 samples/s  eta 0:03\x1b[K");
  EXPECT_EQ(stream_.next_write(),
            "\repoch 1/3 [========>       ] 2/4  loss 1.0000  64 samples/s  eta 0:02\x1b[K");
}

TEST_F(ProgressTest, ATerminalIsRedrawnAtMostTenTimesASecond) {
  ProgressBar progress(options(100'000, true));
  int draws = 0;
  for (std::int64_t step = 1; step <= 1024; ++step) {
    now_ += 1.0 / 512.0;  // two seconds in all, in exact steps
    progress.update(step, step, 1.0);
    if (!stream_.next_write().empty()) ++draws;
  }
  EXPECT_EQ(draws, 20);  // the first step, then one each 52 steps: 1, 53, ..., 989
}

TEST_F(ProgressTest, AClearedLineIsDrawnAgainByTheNextUpdate) {
  ProgressBar progress(options(100, true));
  progress.update(1, 1, 1.0);
  stream_.next_write();
  progress.clear();
  EXPECT_EQ(stream_.next_write(), "\r\x1b[K");
  progress.clear();
  EXPECT_EQ(stream_.next_write(), "") << "nothing is there to be cleared";
  progress.update(2, 2, 1.0);  // at the same moment
  EXPECT_NE(stream_.next_write().find("] 2/100"), std::string::npos);
}

TEST_F(ProgressTest, TheLastStepIsAlwaysDrawnAndMoreStepsLeaveTheBarFull) {
  ProgressBar progress(options(2, true));
  progress.update(1, 1, 1.0);
  progress.update(2, 2, 1.0);
  EXPECT_NE(stream_.text().find("[================] 2/2"), std::string::npos);
  now_ += 4.0;
  progress.update(4, 4, kUnknown);
  EXPECT_EQ(stream_.text(), "\repoch 1/3 [================] 4/2  1 samples/s  eta 0:00\x1b[K");
}

TEST_F(ProgressTest, FinishShowsTheLastFiguresAndEndsTheLineOnce) {
  ProgressBar progress(options(1000, true));
  progress.update(1, 1, 1.0);
  progress.update(7, 7, 1.0);  // too soon to be drawn
  stream_.text();
  progress.finish();
  progress.finish();
  now_ += 1.0;
  progress.update(8, 8, 1.0);
  EXPECT_EQ(stream_.text(), "\repoch 1/3 [>               ] 7/1000  loss 1.0000\x1b[K\n");
}

TEST_F(ProgressTest, IsSilentBeforeTheFirstStepWithoutStepsAndDisabled) {
  ProgressBar(options(1000, true)).finish();
  auto disabled = options(2, true);
  disabled.enabled = false;
  for (const auto& silent : {disabled, options(0, true)}) {
    ProgressBar progress(silent);
    progress.update(2, 2, 1.0);
    progress.finish();
  }
  EXPECT_EQ(stream_.text(), "");
}

TEST_F(ProgressTest, AnOpenLineIsEndedWhenTheProgressGoesAway) {
  {
    ProgressBar progress(options(1000, true));
    progress.update(1, 1, 1.0);
    stream_.text();
  }
  EXPECT_EQ(stream_.text(), "\n");
}

TEST(IsTerminal, IsTrueForATerminalAndNotForAPipe) {
  const CapturedStream pipe;
  EXPECT_FALSE(is_terminal(pipe.get()));
  const int master = posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(master, 0);
  std::FILE* stream = fdopen(master, "w");
  EXPECT_TRUE(is_terminal(stream));
  std::fclose(stream);
}

}  // namespace
}  // namespace ladder
