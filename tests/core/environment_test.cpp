// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "ladder/core/error.h"
#include "tests/support/expect_error.h"

namespace ladder {
namespace {

const std::string kName = "LADDER_TEST_VARIABLE";

class Environment : public testing::Test {
 protected:
  void TearDown() override { unsetenv(kName.c_str()); }
  static void set(const char* value) { setenv(kName.c_str(), value, 1); }
};

TEST_F(Environment, AnUnsetVariableHasNoValue) {
  EXPECT_EQ(environment_variable(kName), std::nullopt);
  EXPECT_EQ(environment_integer(kName, 0), std::nullopt);
  EXPECT_TRUE(environment_integers(kName, 0).empty());
}

TEST_F(Environment, AnEmptyVariableCountsAsUnset) {
  set("");
  EXPECT_EQ(environment_variable(kName), std::nullopt);
  EXPECT_EQ(environment_integer(kName, 0), std::nullopt);
  EXPECT_TRUE(environment_integers(kName, 0).empty());
}

TEST_F(Environment, ATextIsReturnedAsItIs) {
  set(" 127.0.0.1 ");
  EXPECT_EQ(environment_variable(kName), " 127.0.0.1 ");
}

TEST_F(Environment, AnIntegerMayBeTheMinimum) {
  set("-3");
  EXPECT_EQ(environment_integer(kName, -3), -3);
}

TEST_F(Environment, AnIntegerBelowTheMinimumIsRefused) {
  set("0");
  EXPECT_ERROR(environment_integer(kName, 1), UsageError,
               "LADDER_TEST_VARIABLE: expected a whole number of at least 1, got '0'; hint: set "
               "LADDER_TEST_VARIABLE to one, or: unset LADDER_TEST_VARIABLE");
}

TEST_F(Environment, AnotherTextThanAnIntegerIsRefused) {
  for (const char* text : {"two", "2x", " 2", "2.5", "0x10", "+2", "9223372036854775808"}) {
    set(text);
    EXPECT_ERROR(environment_integer(kName, 0), UsageError, "got '" + std::string(text) + "'");
  }
}

TEST_F(Environment, AListIsSplitAtCommas) {
  set("4, 2 ,1");
  EXPECT_EQ(environment_integers(kName, 1), (std::vector<std::int64_t>{4, 2, 1}));
}

TEST_F(Environment, AListWithABadMemberIsRefused) {
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
