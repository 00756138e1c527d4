// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/system_limits.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <latch>
#include <system_error>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/core/unique_fd.h"

namespace ladder {
namespace {

constexpr std::size_t kLeastStack = 256 << 10;  // of a thread, for LibTorch

rlimit limit_of(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) == 0) return limit;
  return {RLIM_INFINITY, RLIM_INFINITY};
}

rlim_t soft_limit(int resource) { return limit_of(resource).rlim_cur; }

bool is_finite(int resource) { return soft_limit(resource) != RLIM_INFINITY; }

rlim_t open_files() {
  std::error_code error;
  const std::filesystem::directory_iterator entries("/proc/self/fd", error);
  return error ? 0 : static_cast<rlim_t>(std::distance(entries, {}));
}

// Starts `count` threads and ends them. Returns an errno, 0 for success. `stack`: 0 = the default.
int error_of_threads(int count, std::size_t stack) {
  std::latch all_started(1);
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  if (stack != 0) ::pthread_attr_setstacksize(&attributes, stack);
  const auto wait = [](void* latch) -> void* {
    static_cast<std::latch*>(latch)->wait();
    return nullptr;
  };
  std::vector<pthread_t> threads;
  int error = 0;
  while (error == 0 && std::ssize(threads) < count) {
    error = ::pthread_create(&threads.emplace_back(), &attributes, wait, &all_started);
  }
  if (error != 0) threads.pop_back();
  all_started.count_down();
  for (const auto thread : threads) ::pthread_join(thread, nullptr);
  ::pthread_attr_destroy(&attributes);
  return error;
}

}  // namespace

bool is_limit_of_system(int errno_value) {
  return errno_value == EMFILE || errno_value == ENFILE || errno_value == ENOMEM ||
         errno_value == EFBIG || errno_value == ENOSPC || errno_value == EDQUOT;
}

std::string hint_for_limit(int errno_value) {
  constexpr rlim_t kEnough = 1024;
  switch (errno_value) {
    case EMFILE: {
      const auto present = soft_limit(RLIMIT_NOFILE);
      return fmt::format("this process may open {} files: ulimit -n {}", present,
                         std::max(kEnough, 2 * present));
    }
    case ENFILE:
      return "all processes together have too many open files: sysctl fs.file-nr";
    case ENOMEM:
      if (soft_limit(RLIMIT_AS) == RLIM_INFINITY) return "memory ran out: free -h";
      return fmt::format("this process may use {} MiB of memory: ulimit -v unlimited",
                         soft_limit(RLIMIT_AS) >> 20);
    case EFBIG:
      if (soft_limit(RLIMIT_FSIZE) == RLIM_INFINITY)
        return "its disk takes no larger files: name another folder";
      return fmt::format("a file may have at most {} bytes: ulimit -f unlimited",
                         soft_limit(RLIMIT_FSIZE));
    case ENOSPC:
    case EDQUOT:
      return "its disk has no space left, or no inodes: df -h, df -i";
    default:
      return "";
  }
}

std::string hint_for_errno(int errno_value, std::string_view path) {
  const auto limit = hint_for_limit(errno_value);
  if (!limit.empty()) return limit;
  switch (errno_value) {
    case EACCES:
      return fmt::format("check the permissions: namei -l {}", path);
    case EPERM:
      return fmt::format("check owners and attributes: namei -l {0}, lsattr -d {0}", path);
    case EBUSY:
      return fmt::format("see whether it is a mount point: findmnt {}", path);
    case EROFS:
      return fmt::format("its file system is read-only: findmnt -T {}", path);
    case ENOENT: {
      const auto folder = std::filesystem::path(path).parent_path().string();
      return fmt::format("check the path: ls {}", folder.empty() ? "." : folder);
    }
    case ENOTDIR:
    case ELOOP:
      return fmt::format("a part of the path is {}: namei -l {}",
                         errno_value == ELOOP ? "a link that leads to itself" : "a file", path);
    case ENAMETOOLONG:
      return "a name has at most 255 bytes, a path 4095";
    case EISDIR:
    case EEXIST:
    case ENOTEMPTY:
      return fmt::format("something else is there: ls -ld {}", path);
    case EIO:
      return "see the messages of the kernel about its disk: dmesg";
    default:
      return "";
  }
}

std::string hint_for_processes() {
  if (is_memory_limited()) return hint_for_limit(ENOMEM);  // each thread maps its stack
  constexpr const char* kOfContainer = "cat /sys/fs/cgroup/pids.max";
  if (!is_finite(RLIMIT_NPROC)) {
    return fmt::format("the machine or its container has too many threads: ps -eLf | wc -l, {}",
                       kOfContainer);
  }
  return fmt::format(
      "this user may have {} processes and threads (ulimit -u), a container perhaps "
      "fewer ({}): end some: ps -LfU $USER",
      soft_limit(RLIMIT_NPROC), kOfContainer);
}

bool is_memory_limited() { return is_finite(RLIMIT_AS); }

void require_open_files(std::string_view where, int count) {
  auto limit = limit_of(RLIMIT_NOFILE);
  const auto needed = open_files() + static_cast<rlim_t>(count);
  if (limit.rlim_cur >= needed) return;
  limit.rlim_cur = std::min(limit.rlim_max, needed);
  if (limit.rlim_cur == needed && ::setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
  throw SystemError::failed(
      fmt::format("open {} more files", count), where, EMFILE,
      fmt::format("this process may open {} files: ulimit -n {}", limit.rlim_max, needed));
}

void require_stack(std::string_view where) {
  const auto kibibytes = soft_limit(RLIMIT_STACK) >> 10;
  if (kibibytes >= kLeastStack >> 10) return;
  throw SystemError::failed(
      fmt::format("use {} KiB of stack", kLeastStack >> 10), where, ENOMEM,
      fmt::format("this process may use {} KiB of stack: ulimit -s 8192", kibibytes));
}

void require_threads(std::string_view where, int count) {
  const int error = error_of_threads(count, 0);
  if (error == 0) return;
  throw SystemError::failed(fmt::format("start {} threads", count), where, error,
                            hint_for_processes());
}

void require_ranks(std::string_view where, int ranks, int threads) {
  const int others = ranks * (1 + threads) - 1;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw SystemError::failed("pipe", where, errno);
  const UniqueFd from_probe(ends[0]);
  UniqueFd to_parent(ends[1]);
  const pid_t probe = ::fork();
  int error = probe < 0 ? errno : 0;
  if (probe == 0) {
    error = error_of_threads(others, kLeastStack);  // memory of each process is not that of one
    ::_exit(::write(to_parent.get(), &error, sizeof error) == sizeof error ? 0 : 1);
  }
  to_parent.reset();
  if (probe > 0 && ::read(from_probe.get(), &error, sizeof error) < 0) error = 0;
  if (probe > 0) ::waitpid(probe, nullptr, 0);
  if (error == 0) return;
  throw SystemError::failed(
      fmt::format("start {} processes with {} threads each", ranks, 1 + threads), where, error,
      hint_for_processes());
}

}  // namespace ladder
