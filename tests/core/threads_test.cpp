// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/threads.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <string>
#include <thread>

#include "ladder/core/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

TEST(CgroupCpuLimit, IsNothingWithoutControlGroups) {
  const TemporaryFolder root;
  EXPECT_EQ(cgroup_cpu_limit(root.path()), std::nullopt);
}

TEST(CgroupCpuLimit, RoundsAQuotaOfVersion2Up) {
  const TemporaryFolder root;
  root.write("proc/self/cgroup", "0::/\n");
  root.write("sys/fs/cgroup/cpu.max", "150000 100000\n");
  EXPECT_EQ(cgroup_cpu_limit(root.path()), 2);
}

TEST(CgroupCpuLimit, IsAtLeastOne) {
  const TemporaryFolder root;
  root.write("proc/self/cgroup", "0::/\n");
  root.write("sys/fs/cgroup/cpu.max", "1000 100000\n");
  EXPECT_EQ(cgroup_cpu_limit(root.path()), 1);
}

TEST(CgroupCpuLimit, IsNothingIfVersion2SaysMax) {
  const TemporaryFolder root;
  root.write("proc/self/cgroup", "0::/\n");
  root.write("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(cgroup_cpu_limit(root.path()), std::nullopt);
}

TEST(CgroupCpuLimit, IsTheSmallestOfTheGroupAndThoseAbove) {
  const TemporaryFolder root;
  root.write("proc/self/cgroup", "0::/jobs/one/step\n");
  root.write("sys/fs/cgroup/jobs/cpu.max", "800000 100000\n");
  root.write("sys/fs/cgroup/jobs/one/cpu.max", "300000 100000\n");
  root.write("sys/fs/cgroup/jobs/one/step/cpu.max", "max 100000\n");
  EXPECT_EQ(cgroup_cpu_limit(root.path()), 3);
}

TEST(CgroupCpuLimit, ReadsAQuotaOfVersion1) {
  const TemporaryFolder root;
  root.write("proc/self/cgroup", "5:memory:/box\n4:cpu,cpuacct:/box\n0::/\n");
  root.write("sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "400000\n");
  root.write("sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cpu_limit(root.path()), 4);
}

TEST(CgroupCpuLimit, IsNothingIfVersion1SaysMinusOne) {
  const TemporaryFolder root;
  root.write("proc/self/cgroup", "4:cpu:/\n");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cpu_limit(root.path()), std::nullopt);
}

TEST(CgroupCpuLimit, DoesNotTakeCpusetForCpu) {
  const TemporaryFolder root;
  root.write("proc/self/cgroup", "3:cpuset:/\n2:cpuacct:/\n");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cpu_limit(root.path()), std::nullopt);
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
    unsetenv("OMP_NUM_THREADS");
    unsetenv("SLURM_CPUS_ON_NODE");
  }
  void TearDown() override { SetUp(); }
};

TEST_F(ChooseThreads, PrefersTheRequest) {
  setenv("OMP_NUM_THREADS", "5", 1);
  const auto choice = choose_threads({.requested = 3, .local_world_size = 2});
  EXPECT_EQ(choice.threads, 3);
  EXPECT_TRUE(choice.reason.starts_with("requested"));
}

TEST_F(ChooseThreads, UsesTheFirstNumberOfOmpNumThreads) {
  setenv("OMP_NUM_THREADS", "2,1", 1);
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
}

TEST_F(ChooseThreads, GivesAllUsableCpusToOneRank) {
  const auto choice = choose_threads({});
  EXPECT_EQ(choice.threads, usable_cpus());
  EXPECT_EQ(choice.reason,
            std::to_string(choice.threads) + " usable CPU" + (choice.threads == 1 ? "" : "s"));
}

TEST_F(ChooseThreads, GivesOneRankTheCpusOfItsSlurmAllocation) {
  const int cpus = usable_cpus();
  setenv("SLURM_CPUS_ON_NODE", "1", 1);
  const auto one = choose_threads({});
  setenv("SLURM_CPUS_ON_NODE", std::to_string(cpus + 1).c_str(), 1);
  const auto all = choose_threads({});
  EXPECT_EQ(one.threads, 1);
  EXPECT_EQ(one.reason, cpus == 1 ? "1 usable CPU" : "SLURM_CPUS_ON_NODE");
  EXPECT_EQ(all.threads, cpus);
}

TEST_F(ChooseThreads, RefusesANegativeRequest) {
  EXPECT_ERROR(choose_threads({.requested = -1}), UsageError,
               "threads: expected 0 (choose) or more, got -1");
}

TEST_F(ChooseThreads, RefusesMoreThreadsThanAnyProgramGainsFrom) {
  setenv("OMP_NUM_THREADS", "2147483648", 1);
  EXPECT_ERROR(choose_threads({}), UsageError, "OMP_NUM_THREADS: expected at most ");
  EXPECT_ERROR(choose_threads({.requested = 100000}), UsageError, "on this machine, got 100000");
}

}  // namespace
}  // namespace ladder
