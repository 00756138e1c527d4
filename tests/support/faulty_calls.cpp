// SPDX-License-Identifier: Apache-2.0
#include "tests/support/faulty_calls.h"

#include <cstdarg>
#include <utility>

#include "tests/support/counted_calls.h"

namespace ladder {
namespace {

struct State {
  Fault fault;
  bool armed = false;
  std::function<void()> before_openat;
  std::vector<std::string> calls;
};

State& state() {
  static State state;
  return state;
}

}  // namespace

int fault_of(const std::string& call, const std::string& path,
             const std::function<void()>& before_fault) {
  State& now = state();
  if (!now.armed) return 0;
  now.calls.push_back(call + ' ' + name_of(path));
  if (static_cast<int>(now.calls.size()) != now.fault.at) return 0;
  before_fault();
  if (now.fault.error == 0) ::kill(::getpid(), SIGKILL);
  return now.fault.error;
}

bool leaves_out_fsync(const std::string& /*path*/) { return true; }

void arm(const Fault& fault) { state() = {fault, true, {}, {}}; }
void disarm() { state().armed = false; }
void before_next_openat(std::function<void()> fn) { state().before_openat = std::move(fn); }
std::vector<std::string> calls_seen() { return state().calls; }

}  // namespace ladder

extern "C" {

int faulty_open(const char* path, int flags, ...) asm("open");
int faulty_openat(int folder, const char* path, int flags, ...) asm("openat");
int faulty_renameat2(int folder, const char* from, int to_folder, const char* to,
                     unsigned flags) asm("renameat2");
int faulty_unlink(const char* path) asm("unlink");

int faulty_open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  const auto open = [&] {
    return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
  };
  return (flags & O_CREAT) != 0 ? ladder::unless_fault("create", path, open) : open();
}

int faulty_openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  if (const auto fn = std::exchange(ladder::state().before_openat, {})) fn();
  return static_cast<int>(syscall(SYS_openat, folder, path, flags, mode));
}

int faulty_renameat2(int folder, const char* from, int to_folder, const char* to, unsigned flags) {
  if (ladder::state().fault.without_exchange && ladder::state().armed) {
    errno = EINVAL;
    return -1;
  }
  return ladder::unless_fault("exchange " + ladder::name_of(from), to, [&] {
    return static_cast<int>(syscall(SYS_renameat2, folder, from, to_folder, to, flags));
  });
}

int faulty_unlink(const char* path) { return faulty_unlinkat(AT_FDCWD, path, 0); }

}  // extern "C"
