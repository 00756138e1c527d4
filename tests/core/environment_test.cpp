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
