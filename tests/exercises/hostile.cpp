// SPDX-License-Identifier: Apache-2.0
// Submissions to exercise 4 that do harm, or end or change the grader so that it reports success.
// LADDER_HOSTILE chooses which.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "exercises/grader/grader.h"
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

const std::string& chosen() {
  static const std::string what = std::getenv("LADDER_HOSTILE");
  return what;
}

// Ends the grader with success, as the name of the submission ends.
void end_with_success() {
  const auto ends = [](const char* how) { return chosen().ends_with(how); };
  if (ends(":exit")) std::exit(0);
  if (ends(":_exit")) ::_exit(0);
  if (ends(":quick_exit")) std::quick_exit(0);
  if (ends(":exec")) ::execl("/bin/true", "true", nullptr);
  if (ends(":report")) {
    const std::string report = "ok     a property\nresults 1 1 1 1 1 1 1 1 1 1\n";
    for (int fd = 1; fd < 10; ++fd) {  // the report is one of these
      static_cast<void>(::write(fd, report.data(), report.size()));
    }
    ::_exit(0);
  }
  if (ends(":kill")) ::kill(::getppid(), SIGKILL);
}

// Makes expect() return at once.
void expect_nothing() {
#if defined(__x86_64__)
  const auto address = reinterpret_cast<std::uintptr_t>(&ladder::exercises::expect);
  constexpr std::uintptr_t kPage = 4096;
  ::mprotect(reinterpret_cast<void*>(address / kPage * kPage), 2 * kPage,
             PROT_READ | PROT_WRITE | PROT_EXEC);
  *reinterpret_cast<unsigned char*>(address) = 0xC3;  // ret
#endif
}

struct BeforeAndAfter {
  BeforeAndAfter() {
    if (chosen().starts_with("constructor")) end_with_success();
    if (chosen().starts_with("atexit")) std::atexit(end_with_success);
    if (chosen().starts_with("thread")) std::thread(end_with_success).detach();
    if (chosen() == "expects-nothing") expect_nothing();
  }
  ~BeforeAndAfter() {
    if (chosen().starts_with("destructor")) end_with_success();
  }
} before_and_after;

void do_harm(const std::string& what) {
  if (what.starts_with("forks")) fork_ten();
  if (what == "returns-twice" && ::fork() != 0) static_cast<void>(::wait(nullptr));  // child first
  if (what == "exits") std::exit(0);
  if (what == "crashes") ::raise(SIGSEGV);
  while (what.ends_with("hangs")) ::pause();
  while (what == "prints") std::puts("a line without end");
}

std::vector<std::int64_t> training_part(std::int64_t, std::uint64_t, std::int64_t, int, int) {
  do_harm(chosen());
  return {};
}

std::vector<std::int64_t> evaluation_part(std::int64_t, int, int) { return {}; }

const Submission submission(Sampler{training_part, evaluation_part});

}  // namespace
