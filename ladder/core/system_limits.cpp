// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/system_limits.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <latch>
#include <system_error>
#include <thread>
#include <vector>

#include "ladder/core/errno_hints.h"
#include "ladder/core/error.h"

namespace ladder {
namespace {

rlimit limit_of(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) == 0) return limit;
  return {RLIM_INFINITY, RLIM_INFINITY};
}

bool is_finite(int resource) { return limit_of(resource).rlim_cur != RLIM_INFINITY; }

rlim_t open_files() {
  std::error_code error;
  const std::filesystem::directory_iterator entries("/proc/self/fd", error);
  return error ? 0 : static_cast<rlim_t>(std::distance(entries, {}));
}

}  // namespace

std::string hint_for_processes() {
  if (!is_finite(RLIMIT_NPROC)) return "the machine has too many threads: ps -eLf | wc -l";
  return fmt::format(
      "this user may have {} processes and threads: end some (ps -LfU $USER), or: ulimit -u {}",
      limit_of(RLIMIT_NPROC).rlim_cur, 2 * limit_of(RLIMIT_NPROC).rlim_cur);
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
  constexpr rlim_t kNeeded = 256;
  const auto kibibytes = limit_of(RLIMIT_STACK).rlim_cur >> 10;
  if (kibibytes >= kNeeded) return;
  throw SystemError::failed(
      fmt::format("use {} KiB of stack", kNeeded), where, ENOMEM,
      fmt::format("this process may use {} KiB of stack: ulimit -s 8192", kibibytes));
}

void require_threads(std::string_view where, int count) {
  std::latch all_started(1);
  std::vector<std::jthread> threads;
  int error = 0;
  try {
    for (int i = 0; i < count; ++i) threads.emplace_back([&] { all_started.wait(); });
  } catch (const std::system_error& refused) {
    error = refused.code().value();
  }
  all_started.count_down();
  if (error == 0) return;
  throw SystemError::failed(
      fmt::format("start {} threads", count), where, error,
      is_memory_limited() ? fmt::format("{}; or {}", hint_for_processes(), hint_for_limit(ENOMEM))
                          : hint_for_processes());
}

}  // namespace ladder
