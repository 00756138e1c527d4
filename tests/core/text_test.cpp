// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/text.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ladder/core/error.h"
#include "tests/support/expect_error.h"

namespace ladder {
namespace {

using Parts = std::vector<std::string>;

TEST(Text, ANumberIsTheWholeText) {
  EXPECT_EQ(parse_number<int>("-12"), -12);
  EXPECT_EQ(parse_number<double>("1e-3"), 1e-3);
  for (const char* text : {"", "two", "2x", " 2", "2 ", "2.5", "0x10", "+2"}) {
    EXPECT_EQ(parse_number<std::int64_t>(text), std::nullopt) << text;
  }
}

TEST(Text, ANumberThatItsTypeCannotHoldIsNone) {
  EXPECT_EQ(parse_number<std::int64_t>("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(parse_number<std::int64_t>("9223372036854775808"), std::nullopt);
  EXPECT_EQ(parse_number<int>("2147483648"), std::nullopt);
  EXPECT_EQ(parse_number<double>("1e999"), std::nullopt);
}

TEST(Text, AFlagIsReadByPythonsRule) {
  for (const char* text : {"y", "yes", "t", "true", "on", "1", "True", "YES", "tRuE"}) {
    EXPECT_TRUE(parse_bool("X", text)) << text;
  }
  for (const char* text : {"n", "no", "f", "false", "off", "0", "False", "OFF"}) {
    EXPECT_FALSE(parse_bool("X", text)) << text;
  }
  for (const char* text : {"", " true", "2", "enable", "y\n"}) {
    EXPECT_ERROR(parse_bool("X", text), UsageError, "X: expected true or false, got '");
  }
}

TEST(Text, EmptyPartsOfASplitTextCount) {
  EXPECT_EQ(split("a,,b", ','), (Parts{"a", "", "b"}));
  EXPECT_EQ(split("a|", '|'), (Parts{"a", ""}));
  EXPECT_EQ(split("", ','), Parts{""});
}

TEST(Text, LettersBeyondAsciiKeepTheirCase) { EXPECT_EQ(to_lower("aZ_9\xC3\x84"), "az_9\xC3\x84"); }

TEST(Text, DigitsAreGroupedByThousands) {
  EXPECT_EQ(grouped_digits(0), "0");
  EXPECT_EQ(grouped_digits(999), "999");
  EXPECT_EQ(grouped_digits(1000), "1,000");
  EXPECT_EQ(grouped_digits(1199882), "1,199,882");
  EXPECT_EQ(grouped_digits(1000042), "1,000,042");
}

TEST(Text, AQuotientIsRoundedUp) {
  EXPECT_EQ(ceil_div(0, 3), 0);
  EXPECT_EQ(ceil_div(6, 3), 2);
  EXPECT_EQ(ceil_div(7, 3), 3);
}

}  // namespace
}  // namespace ladder
