// SPDX-License-Identifier: Apache-2.0
#include "ladder/launch/failure_kind.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>

namespace ladder {
namespace {

class PeerLost : public testing::Test {
 protected:
  void TearDown() override {
    unsetenv("TORCHELASTIC_MAX_RESTARTS");
    unsetenv("TORCHELASTIC_RESTART_COUNT");
  }
  static void set_restarts(const char* done, const char* most) {
    setenv("TORCHELASTIC_RESTART_COUNT", done, 1);
    setenv("TORCHELASTIC_MAX_RESTARTS", most, 1);
  }
};

TEST_F(PeerLost, QuotesTheBackendAndTheNextStep) {
  set_restarts("0", "5");
  EXPECT_EQ(
      peer_lost("closed").what(),
      std::string("collective: expected all ranks to take part, got \"closed\"; hint: see the "
                  "first error of the other ranks; torchrun will restart the ranks (restart "
                  "1 of 5)"));
}

TEST_F(PeerLost, TheNextStepIsTheLaunchers) {
  EXPECT_EQ(step_after_failure(), "start the program again; with checkpoints it can resume");
  set_restarts("0", "0");
  EXPECT_EQ(step_after_failure(), "torchrun does not restart the ranks (--max-restarts 0)");
  set_restarts("2", "3");
  EXPECT_EQ(step_after_failure(), "torchrun will restart the ranks (restart 3 of 3)");
  set_restarts("3", "3");
  EXPECT_EQ(step_after_failure(), "no restarts are left (3 of 3 done)");
  set_restarts("three", "3");
  EXPECT_EQ(step_after_failure(), "start the program again; with checkpoints it can resume");
}

}  // namespace
}  // namespace ladder
