// SPDX-License-Identifier: Apache-2.0
#include "ladder/armour/stop_signal.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <chrono>
#include <csignal>
#include <stdexcept>
#include <thread>

#include "ladder/core/clock.h"
#include "ladder/launch/rank_status.h"
#include "ladder/launch/signals.h"
#include "tests/support/ranks.h"

namespace ladder {
namespace {

constexpr double kEcho = 0.5;  // seconds in which a second signal is the same request

void wait(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

TEST(StopSignal, AProcessAloneIsAskedAtOnceAndTheFirstSignalCounts) {
  for (const int first : kStopSignals) {
    StopSignal stop(ProcessGroup::single());
    EXPECT_EQ(stop.poll_all_ranks(), 0);
    std::raise(first);
    std::raise(first == SIGTERM ? SIGINT : SIGTERM);  // a launcher's, at once
    EXPECT_EQ(stop.poll_all_ranks(), first);
    EXPECT_EQ(stop.poll_all_ranks(), first) << "until it goes";
  }
  EXPECT_EQ(StopSignal(ProcessGroup::single()).poll_all_ranks(), 0) << "each begins anew";
}

TEST(StopSignalDeathTest, ASecondSignalLaterEndsTheProcess) {
  const auto twice = [](int first, int second) {
    const StopSignal stop(ProcessGroup::single());
    std::raise(first);
    wait(kEcho + 0.1);
    std::raise(second);
  };
  EXPECT_EXIT(twice(SIGTERM, SIGTERM), testing::KilledBySignal(SIGTERM), "");
  EXPECT_EXIT(twice(SIGTERM, SIGINT), testing::KilledBySignal(SIGINT), "");
  const auto while_saving = [&] {
    const SavingMark saving("out/checkpoint-5");
    twice(SIGTERM, SIGTERM);
  };
  EXPECT_EXIT(while_saving(), testing::KilledBySignal(SIGTERM),
              "^warning: not saved: out/checkpoint-5; a second signal ended the run, older "
              "checkpoints stay\n$");
}

TEST(StopSignalDeathTest, AfterItSignalsActAsBeforeAndOneThatCameTooLateActsWhenItGoes) {
  const auto raise_after = [](bool is_late) {
    {
      const StopSignal stop(ProcessGroup::single());
      if (is_late) std::raise(SIGTERM);
    }
    if (!is_late) std::raise(SIGTERM);
  };
  EXPECT_EXIT(raise_after(false), testing::KilledBySignal(SIGTERM), "");
  EXPECT_EXIT(raise_after(true), testing::KilledBySignal(SIGTERM), "");
}

// Else the frame of the handler overwrites data that oneDNN has in the stack pointer's place.
TEST(StopSignal, ItsHandlerHasAStackOfItsOwn) {
  stack_t stack{};
  {
    const StopSignal stop(ProcessGroup::single());
    for (const int signal : kStopSignals) {
      struct sigaction action{};
      sigaction(signal, nullptr, &action);
      EXPECT_TRUE(action.sa_flags & SA_ONSTACK);
    }
    sigaltstack(nullptr, &stack);
    EXPECT_EQ(stack.ss_flags & SS_DISABLE, 0);
    EXPECT_GE(stack.ss_size, 64U * 1024U);
  }
  sigaltstack(nullptr, &stack);
  EXPECT_NE(stack.ss_flags & SS_DISABLE, 0) << "as before";
}

TEST(StopSignal, SignalsThatAreIgnoredStayIgnored) {
  struct sigaction ignore{};
  struct sigaction before{};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGINT, &ignore, &before);
  {
    StopSignal stop(ProcessGroup::single());
    std::raise(SIGINT);
    EXPECT_EQ(stop.poll_all_ranks(), 0);
  }
  sigaction(SIGINT, &before, nullptr);
}

// One rank is asked, in the middle of steps of which each takes as long on all.
TEST(StopSignal, AllRanksStopAfterTheSameStep) {
  for (const char* backend : {"gloo", "shm"}) {
    const auto train = [](const ProcessGroup& group) {
      StopSignal stop(group);
      std::int64_t step = 0;
      int signal = 0;
      while (signal == 0 && step < 1'000'000) {
        ++step;
        if (step == 100 && group.rank() == 1) std::raise(SIGTERM);
        signal = stop.poll_all_ranks();
      }
      EXPECT_EQ(signal, SIGTERM);
      auto steps = torch::tensor({static_cast<double>(step), -static_cast<double>(step)});
      group.all_reduce(steps, ReduceOp::kMax);
      EXPECT_EQ(steps[0].item<double>(), -steps[1].item<double>()) << "most and least";
      EXPECT_GE(step, 100);
    };
    run_ranks(3, train, {.backend = backend});
  }
}

// Steps of a tenth of a second.
TEST_ON_RANKS(StopSignal, AsksAFewTimesASecond, 2) {
  StopSignal stop(group);
  for (int step = 0; step < 4; ++step) {
    stop.poll_all_ranks();
    wait(0.1);
  }
  if (group.rank() == 0) std::raise(SIGINT);
  const double asked = steady_seconds();
  int steps = 0;
  while (stop.poll_all_ranks() == 0) {
    ++steps;
    wait(0.1);
  }
  EXPECT_LE(steps, 4) << "in " << steady_seconds() - asked << " s";
}

// As at the end of an epoch. The step's time counts from that question on, not from a whole
// interval before: a step is taken for no shorter than it is.
TEST_ON_RANKS(StopSignal, AQuestionOutOfTurnDoesNotPutOffTheNext, 2) {
  StopSignal stop(group);
  for (int step = 0; step < 6; ++step) {
    wait(0.01);
    EXPECT_EQ(stop.poll_all_ranks(/*now=*/step >= 3), 0);
  }
  if (group.rank() == 0) std::raise(SIGINT);
  int steps = 1;
  for (; stop.poll_all_ranks() == 0; ++steps) wait(0.01);
  EXPECT_LE(steps, 100) << "a quarter of a second are 25 steps at most";
}

TEST(StopSignal, ASignalThatCameTooLateDoesNotHideAnError) {
  const auto fails = [] {
    const StopSignal stop(ProcessGroup::single());
    std::raise(SIGTERM);
    throw std::runtime_error("an error");
  };
  EXPECT_THROW(fails(), std::runtime_error);
}

TEST(StopSignal, SaysWhereItStopped) {
  EXPECT_EQ(stop_line(SIGTERM, 57, ""), "SIGTERM: stopped after step 57; nothing saved");
  EXPECT_EQ(stop_line(SIGINT, 57, "out/checkpoint-57"),
            "SIGINT: stopped after step 57; saved out/checkpoint-57; resume from it");
}

}  // namespace
}  // namespace ladder
