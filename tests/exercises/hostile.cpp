// SPDX-License-Identifier: Apache-2.0
// Submissions to exercise 4 that do harm. LADDER_HOSTILE chooses which.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "exercises/sampler/sampler.h"

namespace {

using namespace ladder::exercises;

// Ten children, each in a session of its own and deaf to SIGTERM.
void fork_ten() {
  for (int i = 0; i < 10; ++i) {
    if (::fork() != 0) continue;
    ::setsid();
    ::signal(SIGTERM, SIG_IGN);
    for (;;) ::pause();
  }
}

void do_harm(const std::string& what) {
  if (what == "forks") fork_ten();
  if (what == "returns-twice" && ::fork() != 0) static_cast<void>(::wait(nullptr));  // child first
  if (what == "exits") std::exit(0);
  if (what == "crashes") ::raise(SIGSEGV);
  while (what == "hangs") ::pause();
  while (what == "prints") std::puts("a line without end");
}

std::vector<std::int64_t> training_part(std::int64_t, std::uint64_t, std::int64_t, int, int) {
  do_harm(std::getenv("LADDER_HOSTILE"));
  return {};
}

std::vector<std::int64_t> evaluation_part(std::int64_t, int, int) { return {}; }

const Submission submission(Sampler{training_part, evaluation_part});

}  // namespace
