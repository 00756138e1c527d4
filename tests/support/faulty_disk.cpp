// SPDX-License-Identifier: Apache-2.0
//
// A library for LD_PRELOAD: it kills a program, or refuses, at the call of its choice that changes
// files below one folder. The program knows nothing of it. Read from the environment:
//
//   FAULTY_DISK_FOLDER  a part of the paths that count
//   FAULTY_DISK_RANK    the process that counts, by its RANK; without RANK it is 0
//   FAULTY_DISK_AT      the call that fails, counted from 1; 0 = none
//   FAULTY_DISK_ERRNO   what it and all writes after it return; 0 = SIGKILL instead of the call
//   FAULTY_DISK_LOG     a file that takes a line a call, such as "write /a/b"
//   FAULTY_DISK_SLEEP   milliseconds that each fsync takes
//
// A write that fails leaves half of its bytes. fsync does nothing more than count: a killed process
// loses nothing that the kernel has, and without it the tests are quicker.
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <ctime>
#include <string>
#include <string_view>

namespace {

std::string_view variable(const char* name, const char* otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : text;
}

std::string path_of(int descriptor) {
  std::string path(4096, '\0');
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t length = ::readlink(link.c_str(), path.data(), path.size());
  path.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
  return path;
}

void log_call(const std::string& call) {
  const std::string path(variable("FAULTY_DISK_LOG", ""));
  if (path.empty()) return;
  constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
  const auto file = syscall(SYS_openat, AT_FDCWD, path.c_str(), kFlags, 0666);
  const std::string line = call + '\n';
  syscall(SYS_write, file, line.data(), line.size());
  syscall(SYS_close, file);
}

bool counts(std::string_view path) {
  const auto folder = variable("FAULTY_DISK_FOLDER", "");
  return !folder.empty() && path.find(folder) != std::string_view::npos &&
         variable("RANK", "0") == variable("FAULTY_DISK_RANK", "0");
}

// Signals do not shorten it, as they do not shorten the work of a disk.
void sleep_for(int milliseconds) {
  timespec left{.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1'000'000L};
  while (::nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

int next_call() {
  static std::atomic<int> calls = 0;
  return ++calls;
}

// The error that this call shall end with; 0 = it shall do its work. `before_fault` runs first.
template <typename BeforeFault>
int fault_of(const std::string& name, const std::string& path, bool is_write,
             const BeforeFault& before_fault) {
  if (!counts(path)) return 0;
  log_call(name + ' ' + path);
  const int call = next_call();
  const int at = std::atoi(variable("FAULTY_DISK_AT", "0").data());
  const int error = std::atoi(variable("FAULTY_DISK_ERRNO", "0").data());
  const bool stays_full = error != 0 && is_write && at != 0 && call > at;
  if (call != at && !stays_full) return 0;
  before_fault();
  if (error == 0) ::kill(::getpid(), SIGKILL);
  return error;
}

int fault_of(const std::string& name, const std::string& path) {
  return fault_of(name, path, false, [] {});
}

long failed(int error) {
  errno = error;
  return -1;
}

}  // namespace

// Under names of their own for the compiler, because the C library's headers declare these
// functions with properties that differ between systems; under the real ones for the linker.
extern "C" {

ssize_t faulty_write(int descriptor, const void* bytes, std::size_t size) asm("write");
int faulty_fsync(int descriptor) asm("fsync");
int faulty_mkdir(const char* path, mode_t mode) asm("mkdir");
int faulty_rename(const char* from, const char* to) asm("rename");
int faulty_symlink(const char* target, const char* path) asm("symlink");
int faulty_unlinkat(int folder, const char* path, int flags) asm("unlinkat");

ssize_t faulty_write(int descriptor, const void* bytes, std::size_t size) {
  const int error = fault_of("write", path_of(descriptor), true,
                             [&] { syscall(SYS_write, descriptor, bytes, size / 2); });
  return error != 0 ? failed(error) : syscall(SYS_write, descriptor, bytes, size);
}

int faulty_fsync(int descriptor) {
  const std::string path = path_of(descriptor);
  const int error = fault_of("fsync", path);
  if (error != 0) return static_cast<int>(failed(error));
  if (counts(path)) sleep_for(std::atoi(variable("FAULTY_DISK_SLEEP", "0").data()));
  return counts(path) ? 0 : static_cast<int>(syscall(SYS_fsync, descriptor));
}

int faulty_mkdir(const char* path, mode_t mode) {
  const int error = fault_of("mkdir", path);
  return static_cast<int>(error != 0 ? failed(error) : syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}

int faulty_rename(const char* from, const char* to) {
  const int error = fault_of("rename", to);
  return static_cast<int>(error != 0 ? failed(error)
                                     : syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

int faulty_symlink(const char* target, const char* path) {
  const int error = fault_of("symlink", path);
  return static_cast<int>(error != 0 ? failed(error)
                                     : syscall(SYS_symlinkat, target, AT_FDCWD, path));
}

int faulty_unlinkat(int folder, const char* path, int flags) {
  const std::string parent = folder == AT_FDCWD ? "" : path_of(folder) + '/';
  const int error = fault_of("remove", parent + path);
  return static_cast<int>(error != 0 ? failed(error) : syscall(SYS_unlinkat, folder, path, flags));
}

}  // extern "C"
