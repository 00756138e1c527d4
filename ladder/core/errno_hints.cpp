// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/errno_hints.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

namespace ladder {
namespace {

rlim_t soft_limit(int resource) {
  rlimit limit{};
  const bool known = ::getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) == 0;
  return known ? limit.rlim_cur : RLIM_INFINITY;
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
      return "free some space on its disk: df -h";
    default:
      return "";
  }
}

std::string hint_for_errno(int errno_value, std::string_view path) {
  const auto limit = hint_for_limit(errno_value);
  if (!limit.empty()) return limit;
  const auto folder = std::filesystem::path(path).parent_path().string();
  const std::string place = folder.empty() ? "." : folder;
  switch (errno_value) {
    case EACCES:
    case EPERM:
    case EROFS:
      return fmt::format("check that you may write there: ls -ld {}, findmnt -T {}", place, place);
    case ENOENT:
    case ENOTDIR:
      return fmt::format("check the path: ls {}", place);
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

}  // namespace ladder
