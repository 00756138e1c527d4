// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <torch/types.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <iterator>
#include <string>

#include "ladder/core/device.h"
#include "ladder/core/error.h"
#include "ladder/core/unique_fd.h"
#include "ladder/launch/spawn.h"
#include "traps/ranks.h"
#include "traps/report.h"

namespace ladder::traps {
namespace {

void multiply() { torch::mm(torch::ones({512, 512}), torch::ones({512, 512})); }

long threads() { return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}); }

// Whether a child process finishes a matrix product in time.
bool child_finishes() {
  constexpr int kMilliseconds = 3'000;
  std::array<int, 2> ends{};
  require(::pipe(ends.data()) == 0, "no pipe");
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const pid_t child = ::fork();
  require(child >= 0, "no process");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    multiply();
    ::_exit(::write(writer.get(), "x", 1) == 1 ? 0 : 1);
  }
  writer.reset();
  pollfd end{.fd = reader.get(), .events = POLLIN, .revents = 0};
  const bool finished = ::poll(&end, 1, kMilliseconds) == 1 && (end.revents & POLLIN) != 0;
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return finished;
}

}  // namespace

void fork_after_threads() {
  prepare_process({.requested = 2});
  multiply();
  const auto before = threads();
  require(!child_finishes(), "the child process finished its product");
  const auto error = error_of<UsageError>([] { spawn([](int /*rank*/) {}); });
  mistake("threads before the fork", std::to_string(before));
  mistake("child process computes", "no: killed after 3 seconds");
  guard("error", error);
}

}  // namespace ladder::traps
