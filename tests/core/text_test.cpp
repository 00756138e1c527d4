// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/text.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "ladder/core/environment.h"
#include "ladder/core/error.h"
#include "tests/support/expect_error.h"

namespace ladder {
namespace {

using Parts = std::vector<std::string>;

TEST(Text, ANumberIsTheWholeTextAndOneThatItsTypeCanHold) {
  EXPECT_EQ(parse_number<int>("-12"), -12);
  EXPECT_EQ(parse_number<double>("1e-3"), 1e-3);
  EXPECT_EQ(parse_number<std::int64_t>("9223372036854775807"), INT64_MAX);
  for (const char* text :
       {"", "two", "2x", " 2", "2 ", "2.5", "0x10", "+2", "9223372036854775808"}) {
    EXPECT_EQ(parse_number<std::int64_t>(text), std::nullopt) << text;
  }
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

const std::string kName = "LADDER_TEST_VARIABLE";

class Environment : public testing::Test {
 protected:
  void TearDown() override { unsetenv(kName.c_str()); }
  static void set(const char* value) { setenv(kName.c_str(), value, 1); }
};

TEST_F(Environment, AVariableThatIsUnsetOrEmptyHasNoValue) {
  for (const bool is_empty : {false, true}) {
    if (is_empty) set("");
    EXPECT_EQ(environment_variable(kName), std::nullopt);
    EXPECT_EQ(environment_integer(kName, 0), std::nullopt);
    EXPECT_TRUE(environment_integers(kName, 0).empty());
  }
  set(" 127.0.0.1 ");
  EXPECT_EQ(environment_variable(kName), " 127.0.0.1 ");
}

TEST_F(Environment, AnIntegerIsAtLeastTheMinimum) {
  set("-3");
  EXPECT_EQ(environment_integer(kName, -3), -3);
  for (const char* text : {"-3", "two"}) {
    set(text);
    EXPECT_ERROR(environment_integer(kName, 1), UsageError,
                 "LADDER_TEST_VARIABLE: expected a whole number of at least 1, got '" +
                     std::string(text) +
                     "'; hint: set LADDER_TEST_VARIABLE to one, or: unset LADDER_TEST_VARIABLE");
  }
}

TEST_F(Environment, AListIsSplitAtCommas) {
  set("4, 2 ,1");
  EXPECT_EQ(environment_integers(kName, 1), (std::vector<std::int64_t>{4, 2, 1}));
  for (const char* text : {"4,", ",4", "4,,1", "4,zero", "4,0", " ", "4;1"}) {
    set(text);
    EXPECT_ERROR(environment_integers(kName, 1), UsageError,
                 "LADDER_TEST_VARIABLE: expected whole numbers of at least 1, separated by commas, "
                 "got '" +
                     std::string(text) + "'");
  }
}

}  // namespace
}  // namespace ladder
