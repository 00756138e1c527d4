// SPDX-License-Identifier: Apache-2.0
#include "ladder/armour/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <filesystem>
#include <string_view>
#include <utility>

#include "ladder/core/clock.h"
#include "ladder/core/error.h"
#include "ladder/io/atomic_file.h"
#include "ladder/io/json.h"

namespace ladder {
namespace {

// "process 4711 on node-1"
std::string this_process() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  const bool known = ::gethostname(name.data(), name.size() - 1) == 0;
  return fmt::format("process {} on {}", ::getpid(), known ? name.data() : "an unknown machine");
}

// What the owner has written into the file; untrusted.
std::string owner_in(int folder, const std::string& name) {
  constexpr int kFlags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  const UniqueFd file(::openat(folder, name.c_str(), kFlags));
  std::array<char, 200> text{};
  const auto count = file ? ::read(file.get(), text.data(), text.size()) : 0;
  const std::string_view line(text.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
  if (line.empty()) return "another process";
  const auto quoted = quoted_for_message(line.substr(0, line.find('\n')));
  return quoted.substr(1, quoted.size() - 2);
}

}  // namespace

FolderLock::FolderLock(std::string_view where, const std::string& file,
                       std::chrono::milliseconds wait)
    : folder_(::open(folder_of(file).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)),
      name_(std::filesystem::path(file).filename()) {
  constexpr int kMillisecondsBetween = 50;
  if (!folder_) throw SystemError::failed("open", folder_of(file), errno);
  Deadline deadline(wait);
  while (!try_lock(file)) {
    if (deadline.passed()) {
      throw UsageError::conflict(where, fmt::format("in use by {}", owner_in(folder_.get(), name_)),
                                 "wait for the end of that run, or name another folder");
    }
    ::poll(nullptr, 0, kMillisecondsBetween);
  }
}

// Returns false if another process holds the lock.
bool FolderLock::try_lock(const std::string& path) {
  constexpr int kFlags = O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  UniqueFd file(::openat(folder_.get(), name_.c_str(), kFlags, 0666));
  if (!file) throw SystemError::failed("open", path, errno);
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    return errno != EWOULDBLOCK && errno != EINTR;  // no locks here: is_held() is false
  }
  file_ = std::move(file);
  // The owner before may have removed the file between the two calls.
  if (!is_in_place()) return false;
  const std::string line = this_process() + '\n';
  const bool is_written = ::ftruncate(file_.get(), 0) == 0 &&
                          ::pwrite(file_.get(), line.data(), line.size(), 0) == std::ssize(line);
  if (!is_written) throw SystemError::failed("write", path, errno);
  return true;
}

bool FolderLock::is_in_place() const {
  struct stat locked{};
  struct stat present{};
  return ::fstat(file_.get(), &locked) == 0 &&
         ::fstatat(folder_.get(), name_.c_str(), &present, 0) == 0 &&
         locked.st_ino == present.st_ino && locked.st_dev == present.st_dev;
}

FolderLock::~FolderLock() {
  // While the lock is held, so the file is this one's.
  if (is_in_place()) ::unlinkat(folder_.get(), name_.c_str(), 0);
}

}  // namespace ladder
