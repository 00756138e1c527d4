// SPDX-License-Identifier: Apache-2.0
#include "ladder/launch/fork_guard.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <optional>
#include <system_error>

#include "ladder/core/environment.h"
#include "ladder/core/error.h"

namespace ladder {
namespace {

namespace fs = std::filesystem;

std::ptrdiff_t thread_count(const std::string& process) {
  std::error_code ignored;
  return std::distance(fs::directory_iterator(process + "/task", ignored), {});
}

// pthread_join comes back a moment before the kernel has taken the thread off its list.
std::ptrdiff_t thread_count_at_rest(const std::string& process) {
  constexpr int kAttempts = 50;
  std::ptrdiff_t threads = thread_count(process);
  for (int i = 0; i < kAttempts && threads > 1; ++i) {
    ::poll(nullptr, 0, /*milliseconds=*/1);
    threads = thread_count(process);
  }
  return threads;
}

std::optional<std::string> open_gpu(const std::string& process) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(process + "/fd", ignored)) {
    std::string target = fs::read_symlink(entry.path(), ignored).string();
    if (target.starts_with("/dev/nvidia") || target == "/dev/dxg") return target;
  }
  return std::nullopt;
}

}  // namespace

void require_forkable(const std::string& process) {
  constexpr std::string_view kHint =
      "call spawn first thing in main: before any tensor operation, any call into CUDA and any "
      "thread";
  if (const auto gpu = open_gpu(process)) {
    throw UsageError::conflict("spawn", fmt::format("this process has already opened {}", *gpu),
                               kHint);
  }
  const auto threads = thread_count_at_rest(process);
  if (threads != 1) {
    throw UsageError::conflict(
        "spawn",
        fmt::format("this process has {} threads, of which a rank would have one", threads), kHint);
  }
}

void require_not_launched() {
  constexpr std::array<std::array<const char*, 2>, 5> kSigns = {{{"RANK", "torchrun"},
                                                                 {"WORLD_SIZE", "torchrun"},
                                                                 {"OMPI_COMM_WORLD_RANK", "mpirun"},
                                                                 {"MV2_COMM_WORLD_RANK", "mpirun"},
                                                                 {"PMI_RANK", "mpirun"}}};
  for (const auto& [name, launcher] : kSigns) {
    const auto value = environment_variable(name);
    if (!value) continue;
    throw UsageError::conflict(
        "spawn", fmt::format("{} is {}: a launcher has already started the ranks", name, *value),
        fmt::format("start this program without {0}, or: unset {1}", launcher, name));
  }
}

}  // namespace ladder
