// SPDX-License-Identifier: Apache-2.0
#include "exercises/launch/launch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "exercises/grader/grader.h"
#include "exercises/grader/shared.h"
#include "ladder/comm/init_process_group.h"
#include "ladder/core/device.h"
#include "ladder/launch/listening_socket.h"
#include "ladder/launch/spawn.h"

namespace ladder::exercises::launch {
namespace {

constexpr int kRanks = 3;
// Only compared.
int given_port() { return 29'511 + static_cast<int>(fresh_seed() % 1'000); }

void sleep_ms(int milliseconds) { ::poll(nullptr, 0, milliseconds); }

// What the ranks report to the process that launched them.
struct Reports {
  std::array<std::atomic<pid_t>, kRanks> pids{};
  std::array<std::array<char, 200>, kRanks> environments{};
  std::atomic<int> started{0};
  std::atomic<bool> waited{false};  // rank 0 waited to the end for a rank that had failed

  void start(int rank) {
    pids.at(static_cast<std::size_t>(rank)) = ::getpid();
    ++started;
  }
  // Whether all ranks start within two seconds.
  bool all_started() const {
    for (int i = 0; i < 2'000 && started < kRanks; ++i) sleep_ms(1);
    return started >= kRanks;
  }
};

constexpr std::array kVariables = {"RANK",        "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
                                   "MASTER_ADDR", "MASTER_PORT"};

void environment(const Launch& yours) {
  for (const auto* name : kVariables) ::unsetenv(name);
  const Shared<Reports> reports;
  const int code = yours.launch(kRanks, given_port(), [&](int rank) {
    std::string text;
    for (const auto* name : kVariables) {
      const char* value = std::getenv(name);
      text += fmt::format("{}={} ", name, value == nullptr ? "(not set)" : value);
    }
    text.copy(reports->environments.at(static_cast<std::size_t>(rank)).data(), 199);
    reports->start(rank);
    return reports->all_started() ? 0 : 99;
  });
  expect(code != 99, "three ranks that run at once", "rank 0 waited two seconds for the others",
         "a rank starts when the one before has ended: fork all, then wait");
  expect(code == 0, "exit code 0 if all ranks return 0", fmt::format("{}", code),
         "the status of wait() is not the exit code: WEXITSTATUS(status)");
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto expected = fmt::format(
        "RANK={0} LOCAL_RANK={0} WORLD_SIZE={1} LOCAL_WORLD_SIZE={1} "
        "MASTER_ADDR=127.0.0.1 MASTER_PORT={2} ",
        rank, kRanks, given_port());
    const std::string got = reports->environments.at(static_cast<std::size_t>(rank)).data();
    expect(got == expected, expected, got,
           got.find("(not set)") != std::string::npos
               ? "the variable is not set in the rank, before run(rank)"
               : "RANK counts from 0, and the world size counts the ranks");
    result(got);
  }
}

// The first rank whose process is still there.
int left_over(const Reports& reports) {
  for (int rank = 0; rank < kRanks; ++rank) {
    if (::kill(reports.pids.at(static_cast<std::size_t>(rank)), 0) == 0) return rank;
  }
  return -1;
}

// Rank 1 fails by `fail` while rank 0 waits without end; rank 2 fails with 7 a second later.
void failure(const Launch& yours, const std::string& what, int expected,
             const std::function<int()>& fail) {
  const Shared<Reports> reports;
  const int code = yours.launch(kRanks, given_port(), [&](int rank) {
    reports->start(rank);
    if (!reports->all_started()) return 99;
    if (rank == 1) return fail();
    sleep_ms(rank == 0 ? 3'000 : 500);
    if (rank == 0) reports->waited = true;
    return 7;
  });
  const auto where = fmt::format("rank 1 of 3 {}: exit code {}", what, expected);
  expect(!reports->waited, where, "rank 0 still waited after 3 seconds",
         code == expected || code == 0
             ? "the ranks that wait for the failed one are not killed"
             : "the ranks that wait for the failed one are not killed: wait for any rank to end, "
               "not for one after the other");
  expect(code != 7, where, "7, of rank 2, half a second later",
         "the ranks that wait for the failed one are not killed, or a signal has no exit code of "
         "its own: WIFSIGNALED");
  expect(code == expected || code != 137, where, "137: SIGKILL",
         "the exit code of a rank that failed later, as it was killed");
  expect(code == expected, where, fmt::format("{}", code),
         code == expected - 128 ? "128 + n is the code of signal n"
                                : "the exit code is not passed on");
  const int rank = left_over(*reports);
  expect(rank < 0, where + ", and no process left", fmt::format("rank {} is still there", rank),
         "the rank was not killed, or killed, and not waited for");
  result(torch::tensor(code));
}

void failures(const Launch& yours) {
  failure(yours, "returns 3", 3, [] { return 3; });
  failure(yours, "is killed by SIGTERM", 143, [] {
    ::raise(SIGTERM);
    return 0;
  });
}

void trains(const Launch& yours) {
  int port = 0;
  {
    const ListeningSocket free_one;
    port = free_one.port();
  }
  ::unsetenv("LADDER_LISTEN_FD");
  const int summand = static_cast<int>(fresh_seed() % 1'000);
  const Shared<std::atomic<int>> result_of_sum;
  const int code = yours.launch(2, port, [&](int rank) {
    prepare_process({.requested = 1});
    const auto group =
        init_process_group({.timeout = std::chrono::milliseconds(4'000), .device = "cpu"});
    auto sum = torch::tensor(rank + 1 + summand);
    group.all_reduce(sum);
    *result_of_sum = sum.item<int>();
    return sum.item<int>() == 3 + 2 * summand ? 0 : 1;
  });
  expect(code == 0, "an all-reduce of two launched ranks", fmt::format("exit code {}", code),
         "MASTER_ADDR or MASTER_PORT differ between the ranks");
  result(torch::tensor(result_of_sum->load()));
}

// A training whose state depends on each step and their order.
struct Training {
  struct State {
    std::int64_t value = 1 + static_cast<std::int64_t>(fresh_seed() % 1'000);
    std::int64_t finished = -1;  // of a snapshot; -1: there is none
  };
  State now;
  State snapshot;
  std::vector<std::int64_t> steps;
  std::vector<std::int64_t> saves;

  // `killed_at`: the step that does not end.
  void run(const Launch& yours, std::int64_t killed_at) {
    struct Killed {};
    now = {};
    const Resumable training{.load = [&]() -> std::optional<std::int64_t> {
                               if (snapshot.finished < 0) return std::nullopt;
                               now = snapshot;
                               return snapshot.finished;
                             },
                             .run_step =
                                 [&](std::int64_t step) {
                                   if (step == killed_at) throw Killed();
                                   steps.push_back(step);
                                   now.value = now.value * 31 % 1'000'003 + step;
                                 },
                             .save =
                                 [&](std::int64_t finished) {
                                   saves.push_back(finished);
                                   snapshot = {now.value, finished};
                                 }};
    try {
      yours.train(/*steps=*/10, /*save_every=*/3, training);
    } catch (const Killed&) {
      return;
    }
  }
};

std::string text(const std::vector<std::int64_t>& numbers) {
  return fmt::format("{}", fmt::join(numbers, " "));
}

void resumes(const Launch& yours) {
  Training whole;
  whole.run(yours, -1);
  expect(text(whole.steps) == "0 1 2 3 4 5 6 7 8 9", "steps 0 to 9", text(whole.steps),
         "a step is left out or done twice");
  expect(text(whole.saves) == "3 6 9 10", "snapshots after 3, 6, 9 and 10 finished steps",
         text(whole.saves), "the snapshot is written at other places");
  Training killed;
  killed.run(yours, 7);
  killed.steps.clear();
  killed.run(yours, -1);
  expect(text(killed.steps) == "6 7 8 9", "after a kill in step 7: steps 6 to 9",
         text(killed.steps),
         killed.steps.size() == 10 ? "load() is not called, or its result not used"
                                   : "a step is left out or done twice after the snapshot");
  expect(killed.now.value == whole.now.value, "the state of a training without a kill",
         "another state", "the snapshot is written at other places than after its steps");
  Training odd;
  odd.snapshot.finished = 4;  // of a run with another save_every
  odd.run(yours, -1);
  expect(text(odd.saves) == "6 9 10", "resumed after 4 steps: snapshots after 6, 9 and 10",
         text(odd.saves), "saves are counted from the step of the resume, and not from step 0");
  result(torch::tensor(killed.now.value));
}

void grade(Grader& grader, const Launch& yours) {
  grader.property_without_group("three ranks at once, each with its environment", 1,
                                [&] { environment(yours); });
  grader.property_without_group("the first failure ends all ranks", 1, [&] { failures(yours); });
  grader.property_without_group("two launched ranks find each other", 1, [&] { trains(yours); });
  grader.property_without_group("a training resumes after a kill", 1, [&] { resumes(yours); });
}

const Graded<Launch> graded("launch", grade);

}  // namespace
}  // namespace ladder::exercises::launch
