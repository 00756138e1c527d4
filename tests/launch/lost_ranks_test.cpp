// SPDX-License-Identifier: Apache-2.0
#include "ladder/launch/lost_ranks.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>
#include <vector>

#include "ladder/core/error.h"

namespace ladder {
namespace {

class LostRanks : public testing::Test {
 protected:
  void TearDown() override {
    known_ranks() = {};
    unsetenv("TORCHELASTIC_MAX_RESTARTS");
    unsetenv("TORCHELASTIC_RESTART_COUNT");
  }
  static void set_restarts(const char* done, const char* most) {
    setenv("TORCHELASTIC_RESTART_COUNT", done, 1);
    setenv("TORCHELASTIC_MAX_RESTARTS", most, 1);
  }
};

constexpr const char* kClosed = "pair.cc:547 Connection closed by peer [10.0.0.2]:4321";

TEST_F(LostRanks, AreThoseWhoseProcessesHaveEnded) {
  EXPECT_EQ(lost_ranks_text(kClosed), "");
  known_ranks() = {.own = 0, .addresses = {"10.0.0.1", "10.0.0.1", "10.0.0.2"}, .ended = {1}};
  EXPECT_EQ(lost_ranks_text(kClosed), "rank 1 has ended");
  known_ranks().ended = {1, 2};
  EXPECT_EQ(lost_ranks_text(kClosed), "ranks 1, 2 have ended");
}

TEST_F(LostRanks, AreElseThoseAtTheAddressInTheText) {
  known_ranks() = {.own = 0, .addresses = {"10.0.0.1", "10.0.0.1", "10.0.0.2"}};
  EXPECT_EQ(lost_ranks_text(kClosed), "lost rank 2 at 10.0.0.2");
  EXPECT_EQ(lost_ranks_text("Connection closed by peer [10.0.0.22]:4321"), "");
  EXPECT_EQ(lost_ranks_text("Connection closed by peer [10.0.0.1]:4321"), "") << "this machine";
  known_ranks().addresses.emplace_back("10.0.0.2");
  EXPECT_EQ(lost_ranks_text(kClosed), "lost one of ranks 2, 3 at 10.0.0.2");
}

TEST_F(LostRanks, AreInTheErrorOfALostPeer) {
  known_ranks().ended = {1};
  set_restarts("0", "5");
  EXPECT_EQ(peer_lost("closed").what(),
            std::string("collective: rank 1 has ended (\"closed\"); hint: see the last lines of "
                        "the lost ranks; torchrun will restart the ranks (restart 1 of 5)"));
}

TEST_F(LostRanks, TheNextStepIsTheLaunchers) {
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
