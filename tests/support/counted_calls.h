// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

// Calls of the operating system that change files, in place of the C library's; part of
// faulty_calls.cpp and of faulty_disk.cpp, which count them and let them fail.
namespace ladder {

// Counts a call on `path`, such as "write" or "rename OLD-NAME". Returns the errno that it must end
// with, or 0; where it is to kill the process, it does not return. `before_fault` runs first.
int fault_of(const std::string& call, const std::string& path,
             const std::function<void()>& before_fault);
// Whether fsync is left out for this file: a killed process loses nothing that the kernel has, and
// with it the tests would take minutes.
bool leaves_out_fsync(const std::string& path);

inline std::string name_of(std::string_view path) {
  return std::string(path.substr(path.find_last_of('/') + 1));
}

inline std::string path_of(int descriptor) {
  std::string path(4096, '\0');
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t length = ::readlink(link.c_str(), path.data(), path.size());
  path.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
  return path;
}

// The result of a call: that of `work`, unless there is a fault.
template <typename Work>
auto unless_fault(
    const std::string& call, const std::string& path, const Work& work,
    const std::function<void()>& before_fault = [] {}) -> decltype(work()) {
  const int error = fault_of(call, path, before_fault);
  if (error == 0) return work();
  errno = error;
  return -1;
}

}  // namespace ladder

// Under names of their own for the compiler, because the C library's headers declare these
// functions with properties that differ between systems; under the real ones for the linker.
extern "C" {

ssize_t faulty_write(int descriptor, const void* bytes, std::size_t size) asm("write");
int faulty_fsync(int descriptor) asm("fsync");
int faulty_mkdir(const char* path, mode_t mode) asm("mkdir");
int faulty_rename(const char* from, const char* to) asm("rename");
int faulty_symlink(const char* target, const char* path) asm("symlink");
int faulty_unlinkat(int folder, const char* path, int flags) asm("unlinkat");

// Half of the bytes arrive before a fault.
ssize_t faulty_write(int descriptor, const void* bytes, std::size_t size) {
  return ladder::unless_fault(
      "write", ladder::path_of(descriptor),
      [&]() -> ssize_t { return syscall(SYS_write, descriptor, bytes, size); },
      [&] { syscall(SYS_write, descriptor, bytes, size / 2); });
}

int faulty_fsync(int descriptor) {
  const std::string path = ladder::path_of(descriptor);
  return ladder::unless_fault("fsync", path, [&] {
    return ladder::leaves_out_fsync(path) ? 0 : static_cast<int>(syscall(SYS_fsync, descriptor));
  });
}

int faulty_mkdir(const char* path, mode_t mode) {
  return ladder::unless_fault(
      "mkdir", path, [&] { return static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path, mode)); });
}

int faulty_rename(const char* from, const char* to) {
  return ladder::unless_fault("rename " + ladder::name_of(from), to, [&] {
    return static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
  });
}

int faulty_symlink(const char* target, const char* path) {
  return ladder::unless_fault(std::string("symlink ") + target, path, [&] {
    return static_cast<int>(syscall(SYS_symlinkat, target, AT_FDCWD, path));
  });
}

int faulty_unlinkat(int folder, const char* path, int flags) {
  const std::string parent = folder == AT_FDCWD ? "" : ladder::path_of(folder) + '/';
  return ladder::unless_fault("remove", parent + path, [&] {
    return static_cast<int>(syscall(SYS_unlinkat, folder, path, flags));
  });
}

}  // extern "C"
