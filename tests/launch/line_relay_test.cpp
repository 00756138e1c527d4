// SPDX-License-Identifier: Apache-2.0
#include "ladder/launch/line_relay.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/captured_stream.h"

namespace ladder {
namespace {

using std::chrono::milliseconds;

class LineBufferTest : public testing::Test {
 protected:
  void add(std::string_view text) { buffer_.append(text, now_); }
  std::string take() {
    std::string piece(buffer_.due(now_));
    buffer_.consume(piece.size());
    return piece;
  }

  LineBuffer::Time now_{};
  LineBuffer buffer_;
};

TEST_F(LineBufferTest, GivesWholeLines) {
  add("one\ntwo\nthr");
  EXPECT_EQ(take(), "one\ntwo\n");
  EXPECT_EQ(take(), "");
  add("ee\n");
  EXPECT_EQ(take(), "three\n");
}

TEST_F(LineBufferTest, GivesAnUnfinishedLineAfterAWhile) {
  add("waiting ...");
  EXPECT_EQ(take(), "");
  ASSERT_TRUE(buffer_.due_at());
  now_ = *buffer_.due_at();
  EXPECT_EQ(take(), "waiting ...");
  EXPECT_FALSE(buffer_.due_at());
}

TEST_F(LineBufferTest, EndsALineThatItsRankDidNot) {
  add("half");
  buffer_.finish();
  EXPECT_EQ(take(), "half\n");
}

TEST_F(LineBufferTest, GivesPiecesThatAPipeTakesWhole) {
  const std::string line(3000, 'x');
  add(line + "\n" + line + "\n");
  EXPECT_EQ(take(), line + "\n");
  EXPECT_EQ(take(), line + "\n");
}

TEST_F(LineBufferTest, GivesALineThatIsTooLongInPieces) {
  add(std::string(5000, 'x'));
  EXPECT_EQ(take().size(), 4096U);
}

TEST_F(LineBufferTest, IsFullAtSixteenPieces) {
  add(std::string(65535, 'x'));
  EXPECT_FALSE(buffer_.is_full());
  add("x");
  EXPECT_TRUE(buffer_.is_full());
}

TEST_F(LineBufferTest, RemembersTheLastLineThatIsNotBlank) {
  add("one\ntwo\n\n  \n");
  EXPECT_EQ(buffer_.last_line(), "two");
  add("thr");
  EXPECT_EQ(buffer_.last_line(), "thr");
  add("ee\n");
  take();
  EXPECT_EQ(buffer_.last_line(), "three");
}

TEST_F(LineBufferTest, RemembersTheLastStateOfARedrawnLine) {
  add("\r1/10\r2/10\r");
  EXPECT_EQ(buffer_.last_line(), "2/10");
}

TEST(LineRelay, LetsRanksTakeTurns) {
  const CapturedStream sink;
  LineRelay relay(fileno(sink.get()), 2);
  const LineRelay::Time now{};
  const std::string line(4095, 'x');
  relay.of(0).append(line + "\n" + line + "\n", now);
  relay.of(1).append("one\n", now);
  for (int i = 0; i < 3; ++i) relay.write_piece(now);
  EXPECT_EQ(sink.next_write(), line + "\n");
  EXPECT_EQ(sink.next_write(), "one\n");
  EXPECT_EQ(sink.next_write(), line + "\n");
  EXPECT_FALSE(relay.has_due(now));
}

}  // namespace
}  // namespace ladder
