// SPDX-License-Identifier: Apache-2.0
#include "tests/support/faulty_calls.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

std::string name_of(std::string_view path) {
  return std::string(path.substr(path.find_last_of('/') + 1));
}

std::string name_of(int descriptor) {
  std::string path(4096, '\0');
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t length = ::readlink(link.c_str(), path.data(), path.size());
  return name_of(std::string_view(path.data(), length > 0 ? static_cast<std::size_t>(length) : 0));
}

// Counts a call. Returns the error that it shall end with; 0 = it shall do its work.
int fault_of(const std::string& call) {
  State& now = state();
  if (!now.armed) return 0;
  now.calls.push_back(call);
  if (static_cast<int>(now.calls.size()) != now.fault.at) return 0;
  if (now.fault.error == 0) ::kill(::getpid(), SIGKILL);
  return now.fault.error;
}

// Half of the bytes arrive before a fault in a write.
bool is_next() {
  return state().armed && static_cast<int>(state().calls.size()) + 1 == state().fault.at;
}

int failed(int error) {
  errno = error;
  return -1;
}

}  // namespace

void arm(const Fault& fault) { state() = {fault, true, {}, {}}; }
void disarm() { state().armed = false; }
void before_next_openat(std::function<void()> fn) { state().before_openat = std::move(fn); }
std::vector<std::string> calls_seen() { return state().calls; }

}  // namespace ladder

// Under names of their own for the compiler, because the C library's headers declare these
// functions with properties that differ between systems; under the real ones for the linker.
extern "C" {

int faulty_open(const char* path, int flags, ...) asm("open");
int faulty_openat(int folder, const char* path, int flags, ...) asm("openat");
ssize_t faulty_write(int descriptor, const void* bytes, std::size_t size) asm("write");
int faulty_fsync(int descriptor) asm("fsync");
int faulty_mkdir(const char* path, mode_t mode) asm("mkdir");
int faulty_rename(const char* from, const char* to) asm("rename");
int faulty_renameat2(int folder, const char* from, int to_folder, const char* to,
                     unsigned flags) asm("renameat2");
int faulty_symlink(const char* target, const char* path) asm("symlink");
int faulty_unlink(const char* path) asm("unlink");
int faulty_unlinkat(int folder, const char* path, int flags) asm("unlinkat");

int faulty_open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & O_CREAT) != 0) {
    va_list arguments;
    va_start(arguments, flags);
    mode = va_arg(arguments, mode_t);
    va_end(arguments);
    const int error = ladder::fault_of("create " + ladder::name_of(path));
    if (error != 0) return ladder::failed(error);
  }
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

int faulty_openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  if (const auto fn = std::exchange(ladder::state().before_openat, {})) fn();
  return static_cast<int>(syscall(SYS_openat, folder, path, flags, mode));
}

ssize_t faulty_write(int descriptor, const void* bytes, std::size_t size) {
  if (ladder::is_next()) syscall(SYS_write, descriptor, bytes, size / 2);
  const int error = ladder::fault_of("write " + ladder::name_of(descriptor));
  return error != 0 ? ladder::failed(error) : syscall(SYS_write, descriptor, bytes, size);
}

int faulty_fsync(int descriptor) {
  const int error = ladder::fault_of("fsync " + ladder::name_of(descriptor));
  return error != 0 ? ladder::failed(error) : 0;
}

int faulty_mkdir(const char* path, mode_t mode) {
  const int error = ladder::fault_of("mkdir " + ladder::name_of(path));
  return error != 0 ? ladder::failed(error)
                    : static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}

int faulty_rename(const char* from, const char* to) {
  const int error = ladder::fault_of("rename " + ladder::name_of(from) + " " + ladder::name_of(to));
  return error != 0 ? ladder::failed(error)
                    : static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

int faulty_renameat2(int folder, const char* from, int to_folder, const char* to, unsigned flags) {
  if (ladder::state().fault.without_exchange && ladder::state().armed) {
    return ladder::failed(EINVAL);
  }
  const int error =
      ladder::fault_of("exchange " + ladder::name_of(from) + " " + ladder::name_of(to));
  return error != 0 ? ladder::failed(error)
                    : static_cast<int>(syscall(SYS_renameat2, folder, from, to_folder, to, flags));
}

int faulty_symlink(const char* target, const char* path) {
  const int error =
      ladder::fault_of(std::string("symlink ") + target + " " + ladder::name_of(path));
  return error != 0 ? ladder::failed(error)
                    : static_cast<int>(syscall(SYS_symlinkat, target, AT_FDCWD, path));
}

int faulty_unlinkat(int folder, const char* path, int flags) {
  const int error = ladder::fault_of("remove " + ladder::name_of(path));
  return error != 0 ? ladder::failed(error)
                    : static_cast<int>(syscall(SYS_unlinkat, folder, path, flags));
}

int faulty_unlink(const char* path) { return faulty_unlinkat(AT_FDCWD, path, 0); }

}  // extern "C"
