// SPDX-License-Identifier: Apache-2.0
#include "ladder/launch/launch_environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "tests/support/expect_error.h"

namespace ladder {
namespace {

using Table = std::map<std::string, std::string>;

VariableLookup lookup_in(const Table& table) {
  return [table](const std::string& name) -> std::optional<std::string> {
    const auto found = table.find(name);
    return found == table.end() ? std::nullopt : std::optional(found->second);
  };
}

LaunchEnvironment read(const Table& table, const LaunchOptions& options = {}) {
  return read_launch_environment(options, lookup_in(table));
}

Table with(Table table, const Table& changes) {
  for (const auto& [name, value] : changes) table[name] = value;
  return table;
}

// `changes` as in "RANK=1 WORLD_SIZE=2"; "RANK=" unsets.
Table with(Table table, const std::string& changes) {
  std::istringstream words(changes);
  for (std::string word; words >> word;) {
    const auto end = word.find('=');
    table[word.substr(0, end)] = word.substr(end + 1);
  }
  return table;
}

Table set(const std::string& variables) { return with({}, variables); }

void expect_refused(const Table& table, const std::string& text,
                    const LaunchOptions& options = {}) {
  SCOPED_TRACE(testing::PrintToString(table));
  EXPECT_ERROR(read(table, options), UsageError, text);
}

// Variables of each launcher on rank 1 of 2, as far as they matter here: recorded from torchrun
// and accelerate of the Python packages, Open MPI 4.1, MPICH 4.0 and SLURM 22.05.
const Table kTorchrun =
    set("RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 GROUP_WORLD_SIZE=1 "
        "ROLE_RANK=1 ROLE_WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=41321 OMP_NUM_THREADS=1 "
        "TORCHELASTIC_MAX_RESTARTS=0 TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_RUN_ID=9b3d0d04 "
        "TORCHELASTIC_USE_AGENT_STORE=True");
const Table kAccelerate =
    with(kTorchrun, "ACCELERATE_MIXED_PRECISION=no MASTER_ADDR=127.0.0.1 TORCHELASTIC_RUN_ID=none");
const Table kEnv = set("RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29501");
const Table kOpenMpi = set(
    "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 "
    "OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_NODE_RANK=1 OMPI_UNIVERSE_SIZE=2 PMIX_RANK=1");
const Table kMpich = set("PMI_RANK=1 PMI_SIZE=2 PMI_FD=8 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2");
const Table kMvapich =
    set("MV2_COMM_WORLD_RANK=1 MV2_COMM_WORLD_SIZE=2 MV2_COMM_WORLD_LOCAL_RANK=1 "
        "MV2_COMM_WORLD_LOCAL_SIZE=2");
const Table kSrun =
    set("SLURM_JOB_ID=123456 SLURM_JOB_NAME=job.sh SLURM_LOCALID=1 SLURM_NNODES=1 SLURM_NODEID=0 "
        "SLURM_NODELIST=vm SLURM_NPROCS=2 SLURM_NTASKS=2 SLURM_PROCID=1 SLURM_STEPID=0 "
        "SLURM_STEP_ID=0 SLURM_STEP_NODELIST=vm SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=2 "
        "SLURM_STEP_TASKS_PER_NODE=2 SLURM_TASKS_PER_NODE=2");
// Rank 3 of `srun --ntasks 5` on three machines, of which the first two have two tasks.
const Table kSrunManyNodes =
    with(kSrun,
         "SLURM_PROCID=3 SLURM_NODEID=1 SLURM_LOCALID=1 SLURM_STEP_NUM_TASKS=5 SLURM_NTASKS=5 "
         "SLURM_STEP_NODELIST=host[5-9,12] SLURM_STEP_TASKS_PER_NODE=2(x2),1");
// The batch script of `sbatch --ntasks 4`: not started by srun, and looks like rank 0 of 4.
const Table kBatchScript =
    set("SLURM_JOB_ID=1 SLURM_JOB_NAME=job.sh SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NODELIST=vm "
        "SLURM_NPROCS=4 SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_NNODES=1 SLURM_TASKS_PER_NODE=4");
// A shell that srun started as one of two tasks.
const Table kShell = with(kSrun, "SLURM_JOB_NAME=bash SLURM_PTY_PORT=43637");
// Steps of one task, which may start another launcher.
const Table kOneTask = set("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1");
const Table kOneStep = with(
    kSrun, "SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1");
// Rank 3 of 4 on several machines.
const Table kFour = with(kEnv, "RANK=3 WORLD_SIZE=4 MASTER_ADDR=node0");
const Table kFourOfMpi =
    with(kOpenMpi, "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 MASTER_ADDR=node0");

struct Case {
  std::string name;
  Table table;
  std::string expected;  // description()
  LaunchOptions options = {};
};

class EachLauncher : public testing::TestWithParam<Case> {};

TEST_P(EachLauncher, IsDescribedForTheLog) {
  EXPECT_EQ(read(GetParam().table, GetParam().options).description(), GetParam().expected);
}

const std::string kNoLauncher = "rank 0 of 1, without a launcher";
const std::string kNotBySrun = kNoLauncher + " (in a SLURM job, but not by srun)";
const std::string kRank1 = "rank 1 of 2, local rank 1 of 2, by ";
const std::string kFourVariables = " (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), store ";
const std::string kByTorchrun = kRank1 + "torchrun" + kFourVariables + "localhost:41321";
const std::string kByEnv = kRank1 + "env" + kFourVariables + "127.0.0.1:29501";
const std::string kByMpirun =
    kRank1 + "mpirun (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE), store 127.0.0.1:29500";
const std::string kBySrun =
    kRank1 +
    "srun (SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_JOB_ID, SLURM_STEP_ID), store "
    "127.0.0.1:18456";

const std::vector<Case> kCases = {
    {"NoLauncher", {}, kNoLauncher},
    {"AnAddressAlone", set("MASTER_ADDR=127.0.0.1 MASTER_PORT=29500"), kNoLauncher},
    {"EmptyVariables", set("RANK= WORLD_SIZE= SLURM_STEP_ID="), kNoLauncher},
    {"Torchrun", kTorchrun, kByTorchrun},
    {"RestartedTorchrun", with(kTorchrun, "TORCHELASTIC_RESTART_COUNT=3"),
     kByTorchrun + ", restart 3"},
    {"Accelerate", kAccelerate, kRank1 + "accelerate" + kFourVariables + "127.0.0.1:41321"},
    {"AccelerateWithOneProcess", set("ACCELERATE_MIXED_PRECISION=no"), kNoLauncher},
    {"ByHand", kEnv, kByEnv},
    {"ByHandOnIpv6", with(kEnv, "MASTER_ADDR=::1"),
     kRank1 + "env" + kFourVariables + "[::1]:29501"},
    {"Spawn", with(kEnv, "LADDER_LISTEN_FD=5"),
     kRank1 + "spawn" + kFourVariables + "127.0.0.1:29501"},
    {"OpenMpi", kOpenMpi, kByMpirun},
    {"Mpich", kMpich, kRank1 + "mpirun (PMI_RANK, PMI_SIZE), store 127.0.0.1:29500"},
    {"Mvapich", kMvapich,
     kRank1 + "mpirun (MV2_COMM_WORLD_RANK, MV2_COMM_WORLD_SIZE), store 127.0.0.1:29500"},
    {"OpenMpiOnManyMachines", with(kFourOfMpi, "MASTER_PORT=4000"),
     "rank 3 of 4, local rank 1 of 2, by mpirun (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, "
     "MASTER_ADDR, MASTER_PORT), store node0:4000"},
    {"PmiWithoutLocalRanksOnOneMachine", set("PMI_RANK=1 PMI_SIZE=2 MASTER_ADDR=127.0.0.1"),
     kRank1 + "mpirun (PMI_RANK, PMI_SIZE, MASTER_ADDR), store 127.0.0.1:29500"},
    {"Srun", kSrun, kBySrun},
    {"SrunWithAPort", with(kSrun, "MASTER_PORT=4000"),
     kRank1 + "srun (SLURM_PROCID, SLURM_STEP_NUM_TASKS, MASTER_PORT), store 127.0.0.1:4000"},
    {"SrunOnManyMachines", kSrunManyNodes,
     "rank 3 of 5, local rank 1 of 2, by srun (SLURM_PROCID, SLURM_STEP_NUM_TASKS, "
     "SLURM_STEP_NODELIST, SLURM_JOB_ID, SLURM_STEP_ID), store host5:18456"},
    {"SrunWithoutVariablesOfTheStep",
     with(kSrunManyNodes,
          "SLURM_STEP_NUM_TASKS= SLURM_STEP_TASKS_PER_NODE= SLURM_TASKS_PER_NODE=2(x2),1 "
          "SLURM_STEP_NODELIST= SLURM_NODELIST=host7,host8"),
     "rank 3 of 5, local rank 1 of 2, by srun (SLURM_PROCID, SLURM_NTASKS, SLURM_NODELIST, "
     "SLURM_JOB_ID, SLURM_STEP_ID), store host7:18456"},
    {"SrunWithPmi2", with(kSrun, "PMI_RANK=1 PMI_SIZE=2"), kBySrun},
    // A shell of salloc has no step, or an interactive one; a true srun in it keeps its job name.
    {"SrunInAShellOfSalloc", with(kSrun, "SLURM_JOB_NAME=interactive SLURM_PTY_PORT=41185"),
     kBySrun},
    {"AShellOfSalloc", set("SLURM_JOB_ID=3 SLURM_JOB_NAME=interactive SLURM_NTASKS=2"), kNotBySrun},
    {"AnInteractiveStepOfSalloc",
     with(kSrun,
          "SLURM_STEP_ID=4294967290 SLURM_STEPID=4294967290 SLURM_JOB_NAME=interactive "
          "SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1"),
     kNotBySrun},
    {"ABatchScript", kBatchScript, kNotBySrun},
    {"MpirunInABatchScript", with(kBatchScript, kOpenMpi), kByMpirun},
    {"AShellOfSrun", with(kShell, "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1"), kNotBySrun},
    {"AShellOfSrunThatIsNamedAProgram", with(kShell, "SLURM_JOB_NAME=train"), kBySrun},
    {"AShellOfSrunWithoutItsStep", with(kShell, "SLURM_STEP_ID= SLURM_STEPID="), kNotBySrun},
    {"SrunOfAShellScript", with(kSrun, "SLURM_JOB_NAME=bash"), kBySrun},
    {"TorchrunInAShellOfSrun", with(kShell, kTorchrun), kByTorchrun},
    {"MpirunInAShellOfSrun", with(kShell, kOpenMpi), kByMpirun},
    {"TorchrunInATaskOfMpirun", with(kOneTask, kTorchrun), kByTorchrun},
    {"TorchrunInATaskOfSrun", with(kOneStep, kTorchrun), kByTorchrun},
    {"ByHandInATaskOfSrun", with(kOneStep, kEnv), kByEnv},
    {"ByHandInTasksOfMpirun", with(kOpenMpi, kEnv),
     kRank1 + "env" + kFourVariables + "127.0.0.1:29501"},
    {"MpirunInATaskOfSrun", with(kOneStep, kOpenMpi), kByMpirun},
    {"SrunThatCarriesTheDaemonsOfMpirun", with(kSrun, with(kFourOfMpi, "MASTER_PORT=4000")),
     "rank 3 of 4, local rank 1 of 2, by mpirun (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, "
     "MASTER_ADDR, MASTER_PORT), store node0:4000"},
    {"Options",
     {},
     "rank 1 of 3, local rank 1 of 3, by options (rank, world_size, master_addr, master_port), "
     "store localhost:4000",
     {.rank = 1, .world_size = 3, .master_addr = "localhost", .master_port = 4000}},
    {"OptionsWithVariables",
     set("MASTER_ADDR=node0 MASTER_PORT=4000 WORLD_SIZE=3"),
     "rank 1 of 3, local rank 0 of 1, by options (rank, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), "
     "store node0:4000",
     {.rank = 1}},
    {"OptionsForARendezvousInAFile",
     {},
     "rank 1 of 2, local rank 1 of 2, by options (rank, world_size)",
     {.rank = 1, .world_size = 2, .needs_address = false}},
    {"OptionsInAStepOfOneTask",
     kOneTask,
     "rank 1 of 2, local rank 0 of 1, by options (rank, world_size, master_addr, master_port), "
     "store node0:4000",
     {.rank = 1, .world_size = 2, .master_addr = "node0", .master_port = 4000}},
};

INSTANTIATE_TEST_SUITE_P(LaunchEnvironment, EachLauncher, testing::ValuesIn(kCases),
                         [](const auto& test) { return test.param.name; });

TEST(LaunchEnvironment, ReadsTheEnvironmentByDefault) {
  setenv("MASTER_PORT", "none", 1);
  EXPECT_ERROR(read_launch_environment(), UsageError, "MASTER_PORT: expected a whole number");
  EXPECT_ERROR(require_launcher(), UsageError, "MASTER_PORT: expected a whole number");
  unsetenv("MASTER_PORT");
}

TEST(LaunchEnvironment, HasTheStoreOfTorchrunTheSocketOfSpawnAndTheNumberOfNodes) {
  EXPECT_TRUE(read(kTorchrun).use_agent_store);
  EXPECT_FALSE(read(with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE=true")).use_agent_store);
  EXPECT_FALSE(read(with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE=")).use_agent_store);
  EXPECT_FALSE(read(kEnv).use_agent_store);
  EXPECT_EQ(read(with(kEnv, "LADDER_LISTEN_FD=5")).listen_fd, 5);
  EXPECT_EQ(read(kEnv).listen_fd, std::nullopt);
  EXPECT_TRUE(read({}).is_single_node());
  EXPECT_TRUE(read(kTorchrun).is_single_node());
  EXPECT_FALSE(read(kSrunManyNodes).is_single_node());
}

TEST(LocalRank, IsCompletedFromWhatIsThere) {
  struct Local {
    Table table;
    int local_rank;
    int local_world_size;
  };
  const Local locals[] = {
      {kFour, 0, 1},
      {with(kFour, "LOCAL_RANK=1"), 1, 2},
      {with(kFour, "LOCAL_WORLD_SIZE=2"), 1, 2},
      {with(kFour, "LOCAL_WORLD_SIZE=4"), 3, 4},
      {with(kFour, "MASTER_ADDR=localhost"), 3, 4},
      {with(kFour, "MASTER_ADDR=127.3.2.1"), 3, 4},
      {with(kFour, "MASTER_ADDR=::1"), 3, 4},
      {with(kFour, "MASTER_ADDR=localhost LOCAL_RANK=0"), 0, 4},
      {with(kFour, "MASTER_ADDR=localhost LOCAL_WORLD_SIZE=2"), 1, 2},
      {with(kFour, "MASTER_ADDR=localhost KUBERNETES_SERVICE_HOST=10.0.0.1"), 0, 1},
      // A rank that was set by hand from the variables of srun.
      {with(kSrunManyNodes, "RANK=3 WORLD_SIZE=5 MASTER_ADDR=host5 MASTER_PORT=4000"), 1, 2},
      {with(kSrunManyNodes, "SLURM_STEP_TASKS_PER_NODE=2(x3),4 SLURM_NODEID=2"), 1, 2},
      {with(kSrunManyNodes, "SLURM_STEP_TASKS_PER_NODE=2(x3),4 SLURM_NODEID=3"), 1, 4},
      {with(kSrunManyNodes, "SLURM_STEP_TASKS_PER_NODE=4,2 SLURM_NODEID=0"), 1, 4},
      {with(kSrunManyNodes, "SLURM_STEP_TASKS_PER_NODE=4,2 SLURM_NODEID=1"), 1, 2},
      {with(kSrunManyNodes, "SLURM_STEP_TASKS_PER_NODE=3 SLURM_NODEID=0"), 1, 3},
  };
  for (const auto& local : locals) {
    SCOPED_TRACE(testing::PrintToString(local.table));
    const auto result = read(local.table);
    EXPECT_EQ(result.local_rank, local.local_rank);
    EXPECT_EQ(result.local_world_size, local.local_world_size);
  }
}

TEST(HostList, FirstHost) {
  const Table hosts = {
      {"host[5-9,12]", "host5"}, {"host[12,5-9]", "host12"},   {"n[005-009]", "n005"},
      {"a1,b[2-3]", "a1"},       {"gpu[1-2]-ib,x", "gpu1-ib"}, {"rack[1-2]n[3-4]", "rack1n3"},
      {"node-a", "node-a"},      {"10.0.0.7", "10.0.0.7"},
  };
  for (const auto& [list, host] : hosts) {
    EXPECT_EQ(read(with(kSrunManyNodes, "SLURM_STEP_NODELIST=" + list)).master_addr, host);
  }
}

TEST(HostList, IsNotUsedIfRank0MayRunOnAnyHost) {
  const auto arbitrary = with(kSrunManyNodes, "SLURM_DISTRIBUTION=arbitrary");
  expect_refused(arbitrary, "MASTER_ADDR: expected the host of rank 0, as SLURM_DISTRIBUTION=arb");
  EXPECT_EQ(read(with(arbitrary, "MASTER_ADDR=host9")).master_addr, "host9");
  EXPECT_EQ(read(with(kSrunManyNodes, "SLURM_DISTRIBUTION=cyclic")).master_addr, "host5");
}

TEST(SlurmPort, DiffersBetweenStepsOfOneJobAndBetweenJobs) {
  const auto port = [](const std::string& job, const std::string& step) {
    return read(with(kSrun, "SLURM_JOB_ID=" + job + " SLURM_STEP_ID=" + step)).master_port;
  };
  EXPECT_EQ(port("123456", "0"), 18456);
  EXPECT_EQ(port("123456", "1"), 19453);
  EXPECT_EQ(port("123456", "10"), 18426);
  EXPECT_EQ(port("123457", "0"), 18457);
  EXPECT_EQ(port("9223372036854775807", "4294967279"), 17970);
}

TEST(Lists, RefuseWhatIsNone) {
  for (const std::string list : {"host[5-9", "host[]", "host[a-b]", ",a"}) {
    expect_refused(
        with(kSrunManyNodes, "SLURM_STEP_NODELIST=" + list),
        "SLURM_STEP_NODELIST: expected a list of hosts such as host[5-9,12], got '" + list + "'");
  }
  for (const std::string list :
       {"two", "2(x", "2(x3", "2(x31", "2(x)", "(x2)", "0", "2,", "2(x0),2", "2(x1)"}) {
    expect_refused(with(kSrunManyNodes, "SLURM_STEP_TASKS_PER_NODE=" + list),
                   "SLURM_STEP_TASKS_PER_NODE: expected task counts of machines 0 to 1, such as "
                   "2(x3),1, got '" +
                       list + "'");
  }
}

TEST(LaunchOptions, MayRepeatTheLaunchersNumbersAndAddAnAddress) {
  for (const Table& table : {kTorchrun, kEnv, kOpenMpi, kMpich, kSrun}) {
    EXPECT_EQ(read(table, {.rank = 1, .world_size = 2}).description(), read(table).description());
  }
  const auto result = read(kOpenMpi, {.master_addr = "node0", .master_port = 4000});
  EXPECT_EQ(result.master_addr, "node0");
  EXPECT_EQ(result.master_port, 4000);
  const LaunchOptions in_a_file = {.needs_address = false};
  EXPECT_EQ(read(kOpenMpi, in_a_file).rank, 1);
  EXPECT_EQ(read(with(kOpenMpi, "OMPI_COMM_WORLD_SIZE=4"), in_a_file).world_size, 4);
}

TEST(LaunchOptions, ThatContradictTheLauncherOrAreOutOfRangeAreRefused) {
  const Table rank_0 = with(kTorchrun, "RANK=0");
  expect_refused(rank_0, "rank: 1 contradicts RANK=0; hint: omit rank, or: unset RANK",
                 {.rank = 1});
  expect_refused(kTorchrun, "world_size: 4 contradicts WORLD_SIZE=2", {.world_size = 4});
  expect_refused(kTorchrun, "master_addr: node0 contradicts MASTER_ADDR=localhost",
                 {.master_addr = "node0"});
  expect_refused(kTorchrun, "master_port: 1 contradicts MASTER_PORT=41321", {.master_port = 1});
  expect_refused(kOpenMpi, "rank: 0 contradicts OMPI_COMM_WORLD_RANK=1", {.rank = 0});
  expect_refused(kSrun, "rank: 0 contradicts SLURM_PROCID=1", {.rank = 0, .world_size = 2});
  expect_refused(kSrun, "world_size: 4 contradicts SLURM_STEP_NUM_TASKS=2", {.world_size = 4});
  expect_refused({}, "master_port: expected 1 to 65535, got 65536", {.master_port = 65536});
  expect_refused({}, "rank: expected 0 to 1, as world_size is 2, got -1",
                 {.rank = -1, .world_size = 2, .needs_address = false});
  expect_refused({}, "world_size: expected 1 to 100000, got 0",
                 {.rank = 0, .world_size = 0, .needs_address = false});
}

TEST(HalfSet, AllMissingVariablesAreNamedWithCommandsThatSetThem) {
  expect_refused(
      set("RANK=0 WORLD_SIZE=4"),
      "MASTER_ADDR, MASTER_PORT: expected all of RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT or "
      "none, not set; hint: torchrun --standalone --nproc-per-node 4 --no-python PROGRAM, or by "
      "hand, once per rank: RANK=0 WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 PROGRAM, "
      "or, for one process: unset RANK WORLD_SIZE");
  expect_refused(set("RANK=3"), "WORLD_SIZE, MASTER_ADDR, MASTER_PORT: ");
  expect_refused(set("RANK=3"), "RANK=3 WORLD_SIZE=4 ");
  expect_refused(set("RANK=2147483647"), "RANK=2147483647 WORLD_SIZE=2147483648 ");
  expect_refused(set("LOCAL_RANK=0"), "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT: ");
  expect_refused({}, "MASTER_PORT=29500 build/bin/stage3",
                 {.rank = 0, .program = "build/bin/stage3"});
  expect_refused(set("RANK=0"), "WORLD_SIZE: expected both of RANK, WORLD_SIZE or none, not set",
                 {.needs_address = false});
  for (const std::string name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    expect_refused(with(kEnv, name + "="), name + ": expected all");
  }
}

TEST(HalfSet, VariablesOfSrunMpirunAndAccelerateAreNamed) {
  expect_refused(with(kSrun, "SLURM_PROCID= SLURM_LOCALID="),
                 "SLURM_PROCID, SLURM_LOCALID: expected a number together with SLURM_STEP_ID");
  expect_refused(with(kSrun, "SLURM_STEP_NUM_TASKS= SLURM_NTASKS="),
                 "SLURM_STEP_NUM_TASKS: expected a number");
  expect_refused(with(kSrun, "SLURM_JOB_ID="), "SLURM_JOB_ID: expected");
  expect_refused(set("PMI_RANK=1"), "PMI_SIZE: expected a number together with PMI_RANK, not set");
  expect_refused(set("OMPI_COMM_WORLD_SIZE=1"), "OMPI_COMM_WORLD_RANK: expected");
  const std::string no_address =
      "MASTER_ADDR: expected the host of rank 0, as mpirun runs on several machines, not set; "
      "hint: MASTER_ADDR=HOST mpirun -x MASTER_ADDR -n 4 PROGRAM";
  expect_refused(with(kOpenMpi, "OMPI_COMM_WORLD_SIZE=4"), no_address);
  expect_refused(set("PMI_RANK=1 PMI_SIZE=4"), no_address);
  // What `accelerate launch --cpu --num_processes 2` sets: it starts one process.
  const auto accelerate =
      set("ACCELERATE_MIXED_PRECISION=no ACCELERATE_USE_CPU=True MASTER_ADDR=127.0.0.1 "
          "MASTER_PORT=29500");
  expect_refused(accelerate, "accelerate launch: started one process");
  EXPECT_EQ(read(with(accelerate, kOpenMpi)).launcher, "mpirun");
}

TEST(Values, ThatAreNoNumbersOrOutOfRangeAreRefusedByName) {
  const std::pair<const char*, const char*> under_torchrun[] = {
      {"RANK=one", "RANK: expected a whole number, 0 to 2147483647, got 'one'; hint: set RANK"},
      {"RANK=1.0", "RANK: expected a whole number"},
      {"RANK=-1", "RANK: expected a whole number"},
      {"RANK=2", "RANK: expected 0 to 1, as WORLD_SIZE is 2, got 2; hint: ranks count from 0"},
      {"WORLD_SIZE=0", "WORLD_SIZE: expected a whole number, 1 to"},
      {"WORLD_SIZE=99999999999", "WORLD_SIZE: expected a whole number, 1 to"},
      {"LOCAL_RANK=x", "LOCAL_RANK: expected a whole number"},
      {"LOCAL_RANK=2", "LOCAL_RANK: expected 0 to 1, as LOCAL_WORLD_SIZE is 2, got 2"},
      {"LOCAL_WORLD_SIZE=0", "LOCAL_WORLD_SIZE: expected a whole number, 1 to"},
      {"LOCAL_WORLD_SIZE=3", "LOCAL_WORLD_SIZE: expected 1 to 2, as WORLD_SIZE is 2, got 3"},
      {"MASTER_PORT=0", "MASTER_PORT: expected a whole number, 1 to 65535, got '0'"},
      {"MASTER_PORT=65536", "MASTER_PORT: expected a whole number, 1 to 65535"},
      {"MASTER_PORT=http", "MASTER_PORT: expected a whole number, 1 to 65535"},
      {"TORCHELASTIC_RESTART_COUNT=-1", "TORCHELASTIC_RESTART_COUNT: expected"},
      {"LADDER_LISTEN_FD=stdin", "LADDER_LISTEN_FD: expected"},
  };
  for (const auto& [variable, text] : under_torchrun) {
    expect_refused(with(kTorchrun, variable), text);
  }
  expect_refused(with(kEnv, "LOCAL_RANK=2"),
                 "LOCAL_RANK: expected 0 to 1, as WORLD_SIZE is 2, got 2");
  expect_refused(with(kOpenMpi, "OMPI_COMM_WORLD_RANK=2"),
                 "OMPI_COMM_WORLD_RANK: expected 0 to 1, as OMPI_COMM_WORLD_SIZE is 2, got 2");
  expect_refused(with(kSrun, "SLURM_PROCID=2"),
                 "SLURM_PROCID: expected 0 to 1, as SLURM_STEP_NUM_TASKS is 2, got 2");
  expect_refused(with(kSrun, "SLURM_STEP_ID=first"), "SLURM_STEP_ID: expected a whole number");
  const std::string local_size = "OMPI_COMM_WORLD_LOCAL_SIZE: expected 1 to 2";
  expect_refused(with(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE=3"), local_size);
  // Also where RANK and WORLD_SIZE are set beside them.
  const auto under_mpirun = with(kEnv, kOpenMpi);
  expect_refused(with(under_mpirun, "OMPI_COMM_WORLD_LOCAL_SIZE=3"), local_size);
  expect_refused(with(under_mpirun, "OMPI_COMM_WORLD_LOCAL_RANK=2"),
                 "OMPI_COMM_WORLD_LOCAL_RANK: ");
  expect_refused(with(with(kEnv, kSrun), "SLURM_LOCALID=2"), "SLURM_LOCALID: ");
}

TEST(TwoLaunchers, ThatDoNotKnowEachOtherAreRefusedWithCommands) {
  for (const std::string rank : {"0", "1"}) {
    expect_refused(
        with(with(kTorchrun, kOpenMpi), "OMPI_COMM_WORLD_RANK=" + rank),
        "torchrun: started for one machine, but there are 2 tasks of mpirun; hint: use one "
        "launcher: torchrun --standalone --nproc-per-node 2 --no-python PROGRAM; or one torchrun "
        "per machine: mpirun -n 2 torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint "
        "HOST:29400 --no-python PROGRAM; or only torchrun: env -u OMPI_COMM_WORLD_RANK -u "
        "OMPI_COMM_WORLD_SIZE PROGRAM");
  }
  expect_refused(with(kTorchrun, kSrun),
                 "torchrun: started for one machine, but there are 2 tasks of srun");
  expect_refused(
      with(with(kEnv, kOpenMpi), "RANK=0"),
      "RANK: RANK=0, WORLD_SIZE=2 by env contradicts OMPI_COMM_WORLD_RANK=1, "
      "OMPI_COMM_WORLD_SIZE=2 by mpirun; hint: use one launcher: torchrun --standalone "
      "--nproc-per-node 2 --no-python PROGRAM, or: mpirun -n 2 PROGRAM, or: srun -n 2 PROGRAM; or "
      "only env: env -u OMPI_COMM_WORLD_RANK -u OMPI_COMM_WORLD_SIZE PROGRAM");
  expect_refused(with(with(kEnv, kSrun), "WORLD_SIZE=3"),
                 "contradicts SLURM_PROCID=1, SLURM_STEP_NUM_TASKS=2 by srun");
  expect_refused(with(kSrun, kOneTask),
                 "OMPI_COMM_WORLD_RANK: OMPI_COMM_WORLD_RANK=0, OMPI_COMM_WORLD_SIZE=1 by mpirun "
                 "contradicts SLURM_PROCID=1, SLURM_STEP_NUM_TASKS=2 by srun");
  expect_refused(with(kOneTask, "PMI_RANK=1 PMI_SIZE=2"), " contradicts ");
  expect_refused(kShell,
                 "srun: cannot distinguish a launch of 2 tasks from a shell in the first of them; "
                 "hint: SLURM_JOB_NAME=train srun -n 2 PROGRAM, or, for one process: env -u "
                 "SLURM_STEP_ID -u SLURM_STEPID PROGRAM");
}

TEST(TwoLaunchers, OneTorchrunAMachineIsWhatSrunAndMpirunMayStart) {
  const Table four =
      with(kTorchrun, "RANK=2 WORLD_SIZE=4 GROUP_WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=node0");
  for (const Table& tasks : {kSrun, kOpenMpi, kMpich}) {
    const auto result = read(with(four, tasks));
    EXPECT_EQ(result.launcher, "torchrun");
    EXPECT_EQ(result.rank, 2);
    EXPECT_EQ(result.world_size, 4);
  }
}

TEST(TwoLaunchers, RanksByHandMayFillTheTasksOfSrun) {
  const Table two_each = with(with(kEnv, kSrun), "WORLD_SIZE=4 LOCAL_WORLD_SIZE=2");
  EXPECT_EQ(read(with(two_each, "RANK=3 LOCAL_RANK=1")).rank, 3);
  EXPECT_EQ(read(with(two_each, "RANK=2 LOCAL_RANK=0")).rank, 2);
  expect_refused(with(two_each, "RANK=1 LOCAL_RANK=1"), "contradicts SLURM_PROCID=1");
}

TEST(RequireLauncher, ReturnsTheLaunch) {
  for (const Table& table : {kTorchrun, kAccelerate, kEnv, kOpenMpi, kMpich, kSrun}) {
    EXPECT_EQ(require_launcher({}, lookup_in(table)).description(), read(table).description());
  }
}

TEST(RequireLauncher, NamesWhatIsMissingAndThreeCommandsThatWork) {
  EXPECT_ERROR(require_launcher({.program = "stage3"}, lookup_in({})), UsageError,
               "launcher variables not set: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; hint: "
               "torchrun --standalone --nproc-per-node 2 --no-python "
               "stage3, or: mpirun -n 2 stage3, or: RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 "
               "MASTER_PORT=29500 stage3");
  EXPECT_ERROR(require_launcher({}, lookup_in(set("MASTER_ADDR=a"))), UsageError,
               "launcher variables not set: RANK, WORLD_SIZE, MASTER_PORT; hint");
  EXPECT_ERROR(require_launcher({}, lookup_in(kBatchScript)), UsageError,
               "hint: in this SLURM job: srun PROGRAM, or: torchrun ");
}

}  // namespace
}  // namespace ladder
