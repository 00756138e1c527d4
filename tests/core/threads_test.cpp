// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/threads.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "ladder/core/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

TEST(CgroupCpuLimit, IsTheSmallestQuotaOfTheGroupAndThoseAboveRoundedUp) {
  struct Case {
    std::string groups;                        // /proc/self/cgroup
    std::map<std::string, std::string> files;  // in /sys/fs/cgroup
    std::optional<int> limit;
  };
  const std::string period = "100000\n";
  const Case cases[] = {
      {"", {}, std::nullopt},
      {"0::/\n", {{"cpu.max", "150000 100000\n"}}, 2},
      {"0::/\n", {{"cpu.max", "1000 100000\n"}}, 1},
      {"0::/\n", {{"cpu.max", "max 100000\n"}}, std::nullopt},
      {"0::/jobs/one/step\n",
       {{"jobs/cpu.max", "800000 100000\n"},
        {"jobs/one/cpu.max", "300000 100000\n"},
        {"jobs/one/step/cpu.max", "max 100000\n"}},
       3},
      // Version 1.
      {"5:memory:/box\n4:cpu,cpuacct:/box\n0::/\n",
       {{"cpu/box/cpu.cfs_quota_us", "400000\n"}, {"cpu/box/cpu.cfs_period_us", period}},
       4},
      {"4:cpu:/\n",
       {{"cpu/cpu.cfs_quota_us", "-1\n"}, {"cpu/cpu.cfs_period_us", period}},
       std::nullopt},
      {"3:cpuset:/\n2:cpuacct:/\n",
       {{"cpu/cpu.cfs_quota_us", period}, {"cpu/cpu.cfs_period_us", period}},
       std::nullopt},
  };
  for (const auto& test : cases) {
    const TemporaryFolder root;
    if (!test.groups.empty()) root.write("proc/self/cgroup", test.groups);
    for (const auto& [name, text] : test.files) root.write("sys/fs/cgroup/" + name, text);
    EXPECT_EQ(cgroup_cpu_limit(root.path()), test.limit) << test.groups;
  }
}

TEST(UsableCpus, IsOneForAThreadBoundToOneCpu) {
  int cpus = 0;
  std::thread([&cpus] {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<unsigned>(sched_getcpu()), &set);
    sched_setaffinity(0, sizeof(set), &set);
    cpus = usable_cpus();
  }).join();
  EXPECT_EQ(cpus, 1);
}

class ChooseThreads : public testing::Test {
 protected:
  void SetUp() override {
    unsetenv("LOCAL_WORLD_SIZE");
    unsetenv("OMP_NUM_THREADS");
    unsetenv("SLURM_CPUS_ON_NODE");
  }
  void TearDown() override { SetUp(); }
};

TEST_F(ChooseThreads, PrefersTheRequestThenTheFirstNumberOfOmpNumThreads) {
  setenv("OMP_NUM_THREADS", "2,1", 1);
  const auto requested = choose_threads({.requested = 3, .local_world_size = 2});
  EXPECT_EQ(requested.threads, 3);
  EXPECT_TRUE(requested.reason.starts_with("requested"));
  const auto choice = choose_threads({.local_world_size = 4});
  EXPECT_EQ(choice.threads, 2);
  EXPECT_TRUE(choice.reason.starts_with("OMP_NUM_THREADS"));
}

TEST_F(ChooseThreads, SaysThatRanksWithMoreThreadsThanCpusAreSlow) {
  const int cpus = static_cast<int>(std::thread::hardware_concurrency());
  const auto reason = [&](int requested, int ranks) {
    return choose_threads({.requested = requested, .local_world_size = ranks}).reason;
  };
  EXPECT_NE(reason(2, cpus).find(fmt::format("requested; slow: {} threads", 2 * cpus)),
            std::string::npos);
  EXPECT_EQ(reason(1, cpus), "requested");
  EXPECT_NE(reason(1, 2 * cpus).find("requested; slow: "), std::string::npos);
  EXPECT_NE(reason(0, 2 * cpus).find("ranks; slow: "), std::string::npos);
}

TEST_F(ChooseThreads, GivesOneToEachOfSeveralRanks) {
  const auto choice = choose_threads({.local_world_size = 2});
  EXPECT_EQ(choice.threads, 1);
  EXPECT_EQ(choice.reason, "one of 2 ranks");
  setenv("LOCAL_WORLD_SIZE", "3", 1);
  EXPECT_TRUE(choose_threads({}).reason.starts_with("one of 3 ranks"));
  EXPECT_EQ(choose_threads({.local_world_size = 2}).reason, "one of 2 ranks");
}

TEST_F(ChooseThreads, GivesOneRankAllUsableCpusOrThoseOfItsSlurmAllocation) {
  const int cpus = usable_cpus();
  const auto usable = std::to_string(cpus) + " usable CPU" + (cpus == 1 ? "" : "s");
  const auto expect_choice = [](int threads, const std::string& reason) {
    const auto choice = choose_threads({});
    EXPECT_EQ(choice.threads, threads);
    EXPECT_EQ(choice.reason, reason);
  };
  expect_choice(cpus, usable);
  setenv("SLURM_CPUS_ON_NODE", "1", 1);
  expect_choice(1, cpus == 1 ? usable : "SLURM_CPUS_ON_NODE");
  setenv("SLURM_CPUS_ON_NODE", std::to_string(cpus + 1).c_str(), 1);
  expect_choice(cpus, usable);
}

TEST_F(ChooseThreads, RefusesNegativeNumbersAndMoreThanAnyProgramGainsFrom) {
  EXPECT_ERROR(choose_threads({.requested = -1}), UsageError,
               "threads: expected 0 (choose) or more, got -1");
  EXPECT_ERROR(choose_threads({.requested = 100000}), UsageError, "on this machine, got 100000");
  setenv("OMP_NUM_THREADS", "2147483648", 1);
  EXPECT_ERROR(choose_threads({}), UsageError, "OMP_NUM_THREADS: expected at most ");
}

}  // namespace
}  // namespace ladder
