// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/system_limits.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ladder/core/clock.h"
#include "ladder/core/memory.h"
#include "ladder/launch/exit_status.h"

namespace ladder {
namespace {

using testing::ExitedWithCode;

// In a child process: a hard limit cannot be raised again.
[[noreturn]] void run_with_limit(__rlimit_resource resource, rlim_t soft, rlim_t hard,
                                 const std::function<void()>& run) {
  const rlimit limit{soft, hard};
  if (::setrlimit(resource, &limit) != 0) std::exit(99);
  std::exit(call_and_report(run));
}

TEST(OpenFiles, TheSoftLimitIsRaisedAndAHardLimitIsAnErrorWithTheNumberThatIsNeeded) {
  const auto raise = [] {
    require_open_files("ranks", 100);
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < 100 || limit.rlim_cur > 200) std::exit(98);
  };
  EXPECT_EXIT(run_with_limit(RLIMIT_NOFILE, 20, 1000, raise), ExitedWithCode(0), "^$");
  EXPECT_EXIT(run_with_limit(RLIMIT_NOFILE, 20, 20, raise), ExitedWithCode(1),
              "^error: ranks: open 100 more files: Too many open files; hint: this process may "
              "open 20 files: ulimit -n 10[0-9]");
}

// Threads need memory for their stacks. The number of processes does not limit root: a limit of 0
// holds for every other user.
TEST(Threads, ThatCannotStartAreAnErrorWithTheLimits) {
  constexpr rlim_t kMemory = rlim_t{3} << 30;
  EXPECT_EXIT(run_with_limit(RLIMIT_AS, kMemory, kMemory, [] { require_threads("threads", 2000); }),
              ExitedWithCode(1),
              "^error: threads: start 2000 threads: Resource temporarily unavailable; hint: this "
              "process may use 3072 MiB of memory: ulimit -v unlimited");
}

TEST(Threads, ThatCanStartAreEndedAgainAndTheNumberOfProcessesIsNamed) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer has a thread in every process, which counts";
#endif
  using Tasks = std::filesystem::directory_iterator;
  if (std::distance(Tasks("/proc/self/task"), Tasks()) > 1) {
    GTEST_SKIP() << "an emulator has a thread in every process, which counts";
  }
  EXPECT_EXIT(run_with_limit(RLIMIT_CORE, 0, 0, [] { require_threads("threads", 20); }),
              ExitedWithCode(0), "^$");
  constexpr uid_t kNobody = 65534;
  const auto start = [] {
    if (::geteuid() == 0 && ::setreuid(kNobody, kNobody) != 0) std::exit(97);
    require_threads("num_workers", 2);
  };
  EXPECT_EXIT(run_with_limit(RLIMIT_NPROC, 0, 0, start), ExitedWithCode(1),
              "num_workers: start 2 threads: Resource temporarily unavailable; hint: this user may "
              "have 0 processes and threads .ulimit -u., a container perhaps fewer ");
  const auto count = [&](rlim_t most) {  // of a user without other processes
    constexpr uid_t kUnused = 54321;
    if (::geteuid() != 0 || ::setreuid(kUnused, kUnused) != 0) std::exit(0);
    const rlimit limit{most, most};
    ::setrlimit(RLIMIT_NPROC, &limit);
    require_ranks("spawn", 3, 5);
  };
  EXPECT_EXIT(std::exit(call_and_report([&] { count(19); })), ExitedWithCode(0), "^$");
  if (::geteuid() != 0) return;
  EXPECT_EXIT(std::exit(call_and_report([&] { count(18); })), ExitedWithCode(1),
              "^error: spawn: start 3 processes with 6 threads each: Resource temporarily "
              "unavailable; hint: this user may have 18 processes and threads ");
}

TEST(Stack, ThatIsTooSmallForLibTorchIsAnError) {
  constexpr rlim_t kKibibyte = 1024;
  const auto run = [] { require_stack("threads"); };
  EXPECT_EXIT(run_with_limit(RLIMIT_STACK, 64 * kKibibyte, 64 * kKibibyte, run), ExitedWithCode(1),
              "^error: threads: use 256 KiB of stack: .*; hint: this process may use 64 KiB of "
              "stack: ulimit -s 8192");
  EXPECT_EXIT(run_with_limit(RLIMIT_STACK, 256 * kKibibyte, 256 * kKibibyte, run),
              ExitedWithCode(0), "^$");
}

TEST(Deadline, CountsTwoSlicesOfAnyTimeInWhichNothingLookedAtIt) {
  using std::chrono::milliseconds;
  const auto start = Deadline::Clock::now();
  Deadline deadline(milliseconds(1'000));
  EXPECT_EQ(deadline.slice(), Deadline::kSlice);
  EXPECT_FALSE(deadline.passed(start + std::chrono::hours(1)));
  EXPECT_FALSE(deadline.passed(start + std::chrono::hours(2)));
  EXPECT_EQ(deadline.slice(), Deadline::kSlice);
  EXPECT_FALSE(deadline.passed(start + std::chrono::hours(2) + milliseconds(199)));
  EXPECT_EQ(deadline.slice(), milliseconds(1));
  EXPECT_TRUE(deadline.passed(start + std::chrono::hours(2) + milliseconds(200)));
  EXPECT_EQ(deadline.slice(), milliseconds(0));
}

TEST(Hints, EachLimitHasItsOwn) {
  EXPECT_TRUE(hint_for_limit(ENOSPC).ends_with("df -h, df -i"));
  EXPECT_EQ(hint_for_limit(EDQUOT), hint_for_limit(ENOSPC));
  EXPECT_NE(hint_for_limit(EMFILE).find("ulimit -n "), std::string::npos);
  EXPECT_NE(hint_for_limit(ENFILE).find("sysctl fs.file-nr"), std::string::npos);
  EXPECT_NE(hint_for_limit(ENOMEM).find("free -h"), std::string::npos);
  EXPECT_NE(hint_for_limit(EFBIG).find("name another folder"), std::string::npos);
  EXPECT_EQ(hint_for_limit(EINVAL), "");
  for (const int limit : {ENOSPC, EDQUOT, EMFILE, ENFILE, ENOMEM, EFBIG}) {
    EXPECT_TRUE(is_limit_of_system(limit)) << limit;
  }
  EXPECT_FALSE(is_limit_of_system(EINVAL));
}

// No hint names one cause where the number allows others.
TEST(Hints, FollowTheNumber) {
  const std::map<int, std::string> hints = {
      {EACCES, "check the permissions: namei -l a/b"},
      {EPERM, "check owners and attributes: namei -l a/b, lsattr -d a/b"},
      {EBUSY, "see whether it is a mount point: findmnt a/b"},
      {EISDIR, "something else is there: ls -ld a/b"},
      {ENOTEMPTY, "something else is there: ls -ld a/b"},
      {EROFS, "its file system is read-only: findmnt -T a/b"},
      {ENOENT, "check the path: ls a"},
      {ENOTDIR, "a part of the path is a file: namei -l a/b"},
      {ELOOP, "a part of the path is a link that leads to itself: namei -l a/b"},
      {ENAMETOOLONG, "a name has at most 255 bytes, a path 4095"},
      {EINVAL, ""}};
  for (const auto& [number, hint] : hints) EXPECT_EQ(hint_for_errno(number, "a/b"), hint);
  EXPECT_NE(hint_for_processes().find("pids.max"), std::string::npos);
}

constexpr std::size_t kSize = std::size_t{192} << 20;

// Allocates, touches and frees kSize bytes; returns the pages the kernel had to supply.
long faults_of_one_use() {
  rusage before{};
  rusage after{};
  getrusage(RUSAGE_THREAD, &before);
  {
    const std::unique_ptr<volatile char, void (*)(volatile char*)> memory(
        static_cast<volatile char*>(std::malloc(kSize)),
        [](volatile char* p) { std::free(const_cast<char*>(p)); });
    for (std::size_t i = 0; i < kSize; i += 4096) memory.get()[i] = 1;
  }
  getrusage(RUSAGE_THREAD, &after);
  return after.ru_minflt - before.ru_minflt;
}

TEST(TuneAllocator, KeepsFreedMemoryForTheNextUse) {
#if !defined(__GLIBC__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "malloc is not glibc's";
#endif
  tune_allocator();
  faults_of_one_use();
  EXPECT_LT(faults_of_one_use(), 16);  // a fresh use takes 49152, or 96 if pages are huge
}

TEST(PeakRss, CountsMemoryThatWasTouchedAndFreed) {
  faults_of_one_use();
  EXPECT_GE(peak_rss_bytes(), std::int64_t{kSize});
}

TEST(ReadBytes, CountsFiles) {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  std::vector<char> bytes(100'000);
  const auto before = read_bytes();
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  const auto read = read_bytes() - before;
  EXPECT_GE(read, 100'000);
  EXPECT_LT(read, 120'000) << "and little else";
}

TEST(PeakRss, IsOfThisProcessAndInBytes) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  // The kernel sums per-CPU counters lazily, so the two may differ by some pages.
  EXPECT_LE(peak_rss_bytes(), (std::int64_t{usage.ru_maxrss} + 1024) * 1024);
}

}  // namespace
}  // namespace ladder
