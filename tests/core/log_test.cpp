// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/log.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "tests/support/captured_stream.h"

namespace ladder {
namespace {

// What a log with these options writes for one plain line, one forced line and one warning.
std::string output_of(LogOptions options) {
  const CapturedStream stream;
  options.stream = stream.get();
  const Log log(options);
  log.info("plain");
  log.info("forced", EveryRank::kYes);
  log.warn("odd");
  return stream.text();
}

TEST(Log, ASingleProcessPrintsEverythingWithoutARank) {
  EXPECT_EQ(output_of({}), "plain\nforced\nwarning: odd\n");
}

TEST(Log, RankZeroOfAWorldPrintsEverythingWithItsRank) {
  EXPECT_EQ(output_of({.rank = 0, .world_size = 2}),
            "[rank 0] plain\n[rank 0] forced\n[rank 0] warning: odd\n");
}

TEST(Log, AnotherRankPrintsOnlyForcedLinesAndWarnings) {
  EXPECT_EQ(output_of({.rank = 1, .world_size = 2}), "[rank 1] forced\n[rank 1] warning: odd\n");
}

TEST(Log, QuietKeepsForcedLinesAndWarnings) {
  EXPECT_EQ(output_of({.quiet = true}), "forced\nwarning: odd\n");
}

TEST(Log, ALineIsWrittenByOneCall) {
  const CapturedStream stream;
  const Log log({.rank = 3, .world_size = 4, .stream = stream.get()});
  log.warn(std::string(3000, 'x'));
  log.warn("short");
  EXPECT_EQ(stream.next_write(), "[rank 3] warning: " + std::string(3000, 'x') + "\n");
  EXPECT_EQ(stream.next_write(), "[rank 3] warning: short\n");
}

}  // namespace
}  // namespace ladder
