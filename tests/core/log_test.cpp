// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "ladder/core/unique_fd.h"
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

TEST(Log, RankZeroPrintsEverythingAndOthersForcedLinesAndWarnings) {
  EXPECT_EQ(output_of({}), "plain\nforced\nwarning: odd\n");
  EXPECT_EQ(output_of({.rank = 0, .world_size = 2}),
            "[rank 0] plain\n[rank 0] forced\n[rank 0] warning: odd\n");
  EXPECT_EQ(output_of({.rank = 1, .world_size = 2}), "[rank 1] forced\n[rank 1] warning: odd\n");
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

// As of a terminal after Ctrl-S.
TEST(Log, AReaderThatPausesHoldsNothingUp) {
  const CapturedStream stream;
  ASSERT_NE(fcntl(fileno(stream.get()), F_SETPIPE_SZ, 4096), -1);
  const Log log({.stream = stream.get()});
  for (const char* line : {"first", "second", "third"}) log.info(line);
  EXPECT_EQ(stream.text(), "first\n");
  log.info("fourth");
  EXPECT_EQ(stream.text(), "(lines dropped: the reader had paused)\nfourth\n");
  log.info("fifth");
  EXPECT_EQ(stream.text(), "fifth\n");
}

TEST(PrintLine, IsKeptForAReaderThatPauses) {
  const CapturedStream stream;
  const UniqueFd output(dup(STDOUT_FILENO));
  ASSERT_NE(fcntl(fileno(stream.get()), F_SETPIPE_SZ, 4096), -1);
  dup2(fileno(stream.get()), STDOUT_FILENO);
  for (const char* line : {"first", "second", "third"}) print_line(line);
  const auto before = stream.text();
  require_lines_printed();
  const auto after = stream.text();
  dup2(output.get(), STDOUT_FILENO);
  EXPECT_EQ(before, "first\n");
  EXPECT_EQ(after, "second\nthird\n");
}

}  // namespace
}  // namespace ladder
