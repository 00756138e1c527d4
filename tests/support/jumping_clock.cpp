// SPDX-License-Identifier: Apache-2.0
//
// A library for LD_PRELOAD: while the file JUMPING_CLOCK_FILE exists, the clock on the wall, as its
// program sees it, is JUMPING_CLOCK_SECONDS ahead of the machine's; a negative number puts it back.
// Whoever has read it then leaves the file JUMPING_CLOCK_SEEN.
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace {

bool is_of_the_wall(clockid_t clock) {
  return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
}

time_t jump() {
  const char* const file = std::getenv("JUMPING_CLOCK_FILE");
  const char* const seen = std::getenv("JUMPING_CLOCK_SEEN");
  const char* const seconds = std::getenv("JUMPING_CLOCK_SECONDS");
  if (file == nullptr || seen == nullptr || seconds == nullptr) return 0;
  const int before = errno;
  const bool jumped = syscall(SYS_faccessat, AT_FDCWD, file, F_OK) == 0;
  if (jumped) {
    constexpr int kFlags = O_WRONLY | O_CREAT | O_CLOEXEC;
    syscall(SYS_close, syscall(SYS_openat, AT_FDCWD, seen, kFlags, 0666));
  }
  errno = before;
  return jumped ? static_cast<time_t>(std::atol(seconds)) : 0;
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, now));
  if (result == 0 && is_of_the_wall(clock)) now->tv_sec += jump();
  return result;
}

int gettimeofday(timeval* now, void* /*zone*/) {
  timespec precise{};
  const int result = clock_gettime(CLOCK_REALTIME, &precise);
  *now = {precise.tv_sec, precise.tv_nsec / 1000};
  return result;
}

time_t time(time_t* now) {
  timespec precise{};
  clock_gettime(CLOCK_REALTIME, &precise);
  if (now != nullptr) *now = precise.tv_sec;
  return precise.tv_sec;
}

}  // extern "C"
