// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/threads.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "ladder/core/environment.h"
#include "ladder/core/error.h"

namespace ladder {
namespace {

namespace fs = std::filesystem;

using Limit = std::optional<int>;

Limit smaller(Limit a, Limit b) {
  if (!a || !b) return a ? a : b;
  return std::min(*a, *b);
}

Limit whole_cpus(std::int64_t quota, std::int64_t period) {
  if (quota <= 0 || period <= 0) return std::nullopt;
  const std::int64_t cpus = quota / period + (quota % period > 0 ? 1 : 0);
  return static_cast<int>(std::min<std::int64_t>(cpus, std::numeric_limits<int>::max()));
}

Limit limit_of_version_2(const fs::path& group) {
  std::ifstream file(group / "cpu.max");
  std::int64_t quota = 0;
  std::int64_t period = 0;
  return file >> quota >> period ? whole_cpus(quota, period) : std::nullopt;
}

Limit limit_of_version_1(const fs::path& group) {
  std::ifstream quota_file(group / "cpu.cfs_quota_us");
  std::ifstream period_file(group / "cpu.cfs_period_us");
  std::int64_t quota = 0;
  std::int64_t period = 0;
  return quota_file >> quota && period_file >> period ? whole_cpus(quota, period) : std::nullopt;
}

Limit limit_of_all_above(const fs::path& mount, const fs::path& group,
                         Limit (*limit_of)(const fs::path&)) {
  Limit limit = limit_of(mount);
  fs::path folder = mount;
  for (const auto& part : group.relative_path()) {
    folder /= part;
    limit = smaller(limit, limit_of(folder));
  }
  return limit;
}

int bound_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

// Refuses thousands of threads: they start for minutes, and no program is faster with them.
int checked(std::string_view where, std::int64_t threads, std::string_view hint) {
  constexpr std::int64_t kThreadsPerCpu = 4;
  constexpr std::int64_t kAlwaysAllowed = 64;
  const std::int64_t most = std::max(kAlwaysAllowed, kThreadsPerCpu * bound_cpus());
  if (threads < 0) {
    throw UsageError::out_of_range(where, threads, "0 (choose) or more", hint);
  }
  if (threads > most) {
    throw UsageError::out_of_range(where, threads, fmt::format("at most {} on this machine", most),
                                   hint);
  }
  return static_cast<int>(threads);
}

}  // namespace

int usable_cpus() {
  const int bound = bound_cpus();
  return std::max(1, std::min(bound, cgroup_cpu_limit().value_or(bound)));
}

std::optional<int> cgroup_cpu_limit(const std::string& root) {
  const fs::path mount = fs::path(root) / "sys/fs/cgroup";
  std::ifstream groups(fs::path(root) / "proc/self/cgroup");
  Limit limit;
  std::string id;  // a line: "4:cpu,cpuacct:/group" or "0::/group"
  std::string controllers;
  std::string group;
  while (std::getline(groups, id, ':') && std::getline(groups, controllers, ':') &&
         std::getline(groups, group)) {
    if (controllers.empty()) {
      limit = smaller(limit, limit_of_all_above(mount, group, limit_of_version_2));
    } else if (fmt::format(",{},", controllers).find(",cpu,") != std::string::npos) {
      limit = smaller(limit, limit_of_all_above(mount / "cpu", group, limit_of_version_1));
    }
  }
  return limit;
}

ThreadChoice choose_threads(const ThreadRequest& request) {
  const auto ranks = request.local_world_size > 0
                         ? request.local_world_size
                         : environment_integer("LOCAL_WORLD_SIZE", 1).value_or(1);
  // Threads without a CPU wait for each other, and spin.
  const auto chosen = [&](int threads, std::string reason) -> ThreadChoice {
    const int online = static_cast<int>(std::thread::hardware_concurrency());
    const int cpus = std::min(online, cgroup_cpu_limit().value_or(online));
    const auto all = threads * ranks;
    if (all > cpus) {
      reason += fmt::format("; slow: {} threads on {} CPU{}", all, cpus, cpus == 1 ? "" : "s");
    } else if (threads > bound_cpus()) {
      reason += fmt::format("; slow: bound to {} of {} CPUs", bound_cpus(), online);
    }
    return {threads, reason};
  };
  const int requested = checked("threads", request.requested, "0 takes one per CPU");
  if (requested > 0) return chosen(requested, "requested");
  const auto openmp = environment_integers("OMP_NUM_THREADS", 1);
  if (!openmp.empty())
    return chosen(
        checked("OMP_NUM_THREADS", openmp.front(), "unset OMP_NUM_THREADS takes one per CPU"),
        "OMP_NUM_THREADS");
  if (ranks > 1) return chosen(1, fmt::format("one of {} ranks", ranks));
  const int cpus = usable_cpus();
  const auto allocated = environment_integer("SLURM_CPUS_ON_NODE", 1);
  if (allocated && *allocated < cpus) return {static_cast<int>(*allocated), "SLURM_CPUS_ON_NODE"};
  return {cpus, fmt::format("{} usable CPU{}", cpus, cpus == 1 ? "" : "s")};
}

}  // namespace ladder
