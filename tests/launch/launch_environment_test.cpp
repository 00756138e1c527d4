// SPDX-License-Identifier: Apache-2.0
#include "ladder/launch/launch_environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <string>
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

// `table` with `changes` on top; a change to "" unsets.
Table with(Table table, const Table& changes) {
  for (const auto& [name, value] : changes) table[name] = value;
  return table;
}

// Variables of each launcher on rank 1 of 2, as far as they matter here: recorded from torchrun
// and accelerate of the Python packages, Open MPI 4.1, MPICH 4.0 and SLURM 22.05.
const Table kTorchrun = {{"RANK", "1"},
                         {"WORLD_SIZE", "2"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"GROUP_RANK", "0"},
                         {"GROUP_WORLD_SIZE", "1"},
                         {"ROLE_RANK", "1"},
                         {"ROLE_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "localhost"},
                         {"MASTER_PORT", "41321"},
                         {"OMP_NUM_THREADS", "1"},
                         {"TORCHELASTIC_MAX_RESTARTS", "0"},
                         {"TORCHELASTIC_RESTART_COUNT", "0"},
                         {"TORCHELASTIC_RUN_ID", "9b3d0d04"},
                         {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
const Table kAccelerate = with(kTorchrun, {{"ACCELERATE_MIXED_PRECISION", "no"},
                                           {"MASTER_ADDR", "127.0.0.1"},
                                           {"TORCHELASTIC_RUN_ID", "none"}});
const Table kEnv = {
    {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29501"}};
const Table kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                        {"OMPI_COMM_WORLD_SIZE", "2"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                        {"OMPI_COMM_WORLD_NODE_RANK", "1"},
                        {"OMPI_UNIVERSE_SIZE", "2"},
                        {"PMIX_RANK", "1"}};
const Table kMpich = {{"PMI_RANK", "1"},
                      {"PMI_SIZE", "2"},
                      {"PMI_FD", "8"},
                      {"MPI_LOCALRANKID", "1"},
                      {"MPI_LOCALNRANKS", "2"}};
const Table kMvapich = {{"MV2_COMM_WORLD_RANK", "1"},
                        {"MV2_COMM_WORLD_SIZE", "2"},
                        {"MV2_COMM_WORLD_LOCAL_RANK", "1"},
                        {"MV2_COMM_WORLD_LOCAL_SIZE", "2"}};
const Table kSrun = {{"SLURM_JOB_ID", "123456"},
                     {"SLURM_JOB_NAME", "job.sh"},
                     {"SLURM_LOCALID", "1"},
                     {"SLURM_NNODES", "1"},
                     {"SLURM_NODEID", "0"},
                     {"SLURM_NODELIST", "vm"},
                     {"SLURM_NPROCS", "2"},
                     {"SLURM_NTASKS", "2"},
                     {"SLURM_PROCID", "1"},
                     {"SLURM_STEPID", "0"},
                     {"SLURM_STEP_ID", "0"},
                     {"SLURM_STEP_NODELIST", "vm"},
                     {"SLURM_STEP_NUM_NODES", "1"},
                     {"SLURM_STEP_NUM_TASKS", "2"},
                     {"SLURM_STEP_TASKS_PER_NODE", "2"},
                     {"SLURM_TASKS_PER_NODE", "2"}};
// Rank 3 of `srun --ntasks 5` on three machines, of which the first two have two tasks.
const Table kSrunManyNodes = with(kSrun, {{"SLURM_PROCID", "3"},
                                          {"SLURM_NODEID", "1"},
                                          {"SLURM_LOCALID", "1"},
                                          {"SLURM_STEP_NUM_TASKS", "5"},
                                          {"SLURM_NTASKS", "5"},
                                          {"SLURM_STEP_NODELIST", "host[5-9,12]"},
                                          {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"}});
// The batch script of `sbatch --ntasks 4`: not started by srun, and looks like rank 0 of 4.
const Table kBatchScript = {{"SLURM_JOB_ID", "1"},    {"SLURM_JOB_NAME", "job.sh"},
                            {"SLURM_LOCALID", "0"},   {"SLURM_NODEID", "0"},
                            {"SLURM_NODELIST", "vm"}, {"SLURM_NPROCS", "4"},
                            {"SLURM_NTASKS", "4"},    {"SLURM_PROCID", "0"},
                            {"SLURM_NNODES", "1"},    {"SLURM_TASKS_PER_NODE", "4"}};

struct Case {
  std::string name;
  Table table;
  std::string expected;  // description()
};

class EachLauncher : public testing::TestWithParam<Case> {};

TEST_P(EachLauncher, IsDescribedForTheLog) {
  EXPECT_EQ(read(GetParam().table).description(), GetParam().expected);
}

const std::string kNoLauncher = "rank 0 of 1, without a launcher";
const std::string kNotBySrun = kNoLauncher + " (in a SLURM job, but not by srun)";
const std::string kByTorchrun =
    "rank 1 of 2, local rank 1 of 2, by torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), "
    "store localhost:41321";
const std::string kByMpirun =
    "rank 1 of 2, local rank 1 of 2, by mpirun (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE), store "
    "127.0.0.1:29500";
const std::string kBySrun =
    "rank 1 of 2, local rank 1 of 2, by srun (SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_JOB_ID, "
    "SLURM_STEP_ID), store 127.0.0.1:18456";
const std::string kByEnv =
    "rank 1 of 2, local rank 1 of 2, by env (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), store "
    "127.0.0.1:29501";

const std::vector<Case> kCases = {
    {"NoLauncher", {}, kNoLauncher},
    {"AnAddressAlone", {{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}}, kNoLauncher},
    {"EmptyVariables", {{"RANK", ""}, {"WORLD_SIZE", ""}, {"SLURM_STEP_ID", ""}}, kNoLauncher},
    {"Torchrun", kTorchrun, kByTorchrun},
    {"RestartedTorchrun", with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "3"}}),
     kByTorchrun + ", restart 3"},
    {"Accelerate", kAccelerate,
     "rank 1 of 2, local rank 1 of 2, by accelerate (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), "
     "store 127.0.0.1:41321"},
    {"AccelerateWithOneProcess", {{"ACCELERATE_MIXED_PRECISION", "no"}}, kNoLauncher},
    {"ByHand", kEnv, kByEnv},
    {"ByHandOnIpv6", with(kEnv, {{"MASTER_ADDR", "::1"}}),
     "rank 1 of 2, local rank 1 of 2, by env (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), store "
     "[::1]:29501"},
    {"Spawn", with(kEnv, {{"LADDER_LISTEN_FD", "5"}}),
     "rank 1 of 2, local rank 1 of 2, by spawn (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), store "
     "127.0.0.1:29501"},
    {"OpenMpi", kOpenMpi, kByMpirun},
    {"Mpich", kMpich,
     "rank 1 of 2, local rank 1 of 2, by mpirun (PMI_RANK, PMI_SIZE), store 127.0.0.1:29500"},
    {"Mvapich", kMvapich,
     "rank 1 of 2, local rank 1 of 2, by mpirun (MV2_COMM_WORLD_RANK, MV2_COMM_WORLD_SIZE), store "
     "127.0.0.1:29500"},
    {"OpenMpiOnManyMachines",
     with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "3"},
                     {"OMPI_COMM_WORLD_SIZE", "4"},
                     {"MASTER_ADDR", "node0"},
                     {"MASTER_PORT", "4000"}}),
     "rank 3 of 4, local rank 1 of 2, by mpirun (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, "
     "MASTER_ADDR, MASTER_PORT), store node0:4000"},
    {"PmiWithoutLocalRanksOnOneMachine",
     {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}},
     "rank 1 of 2, local rank 1 of 2, by mpirun (PMI_RANK, PMI_SIZE, MASTER_ADDR), store "
     "127.0.0.1:29500"},
    {"Srun", kSrun, kBySrun},
    {"SrunWithAPort", with(kSrun, {{"MASTER_PORT", "4000"}}),
     "rank 1 of 2, local rank 1 of 2, by srun (SLURM_PROCID, SLURM_STEP_NUM_TASKS, MASTER_PORT), "
     "store 127.0.0.1:4000"},
    {"SrunOnManyMachines", kSrunManyNodes,
     "rank 3 of 5, local rank 1 of 2, by srun (SLURM_PROCID, SLURM_STEP_NUM_TASKS, "
     "SLURM_STEP_NODELIST, SLURM_JOB_ID, SLURM_STEP_ID), store host5:18456"},
    {"SrunWithoutVariablesOfTheStep",
     with(kSrunManyNodes, {{"SLURM_STEP_NUM_TASKS", ""},
                           {"SLURM_STEP_TASKS_PER_NODE", ""},
                           {"SLURM_TASKS_PER_NODE", "2(x2),1"},
                           {"SLURM_STEP_NODELIST", ""},
                           {"SLURM_NODELIST", "host7,host8"}}),
     "rank 3 of 5, local rank 1 of 2, by srun (SLURM_PROCID, SLURM_NTASKS, SLURM_NODELIST, "
     "SLURM_JOB_ID, SLURM_STEP_ID), store host7:18456"},
    {"SrunWithPmi2", with(kSrun, {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}), kBySrun},
    // A shell of salloc has no step, or an interactive one; a true srun in it keeps its job name.
    {"SrunInAShellOfSalloc",
     with(kSrun, {{"SLURM_JOB_NAME", "interactive"}, {"SLURM_PTY_PORT", "41185"}}), kBySrun},
    {"AShellOfSalloc",
     {{"SLURM_JOB_ID", "3"}, {"SLURM_JOB_NAME", "interactive"}, {"SLURM_NTASKS", "2"}},
     kNotBySrun},
    {"AnInteractiveStepOfSalloc",
     with(kSrun, {{"SLURM_STEP_ID", "4294967290"},
                  {"SLURM_STEPID", "4294967290"},
                  {"SLURM_JOB_NAME", "interactive"},
                  {"SLURM_STEP_NUM_TASKS", "1"},
                  {"SLURM_STEP_TASKS_PER_NODE", "1"}}),
     kNotBySrun},
    {"ABatchScript", kBatchScript, kNotBySrun},
    {"MpirunInABatchScript", with(kBatchScript, kOpenMpi), kByMpirun},
    {"AShellOfSrun",
     with(kSrun, {{"SLURM_JOB_NAME", "bash"},
                  {"SLURM_PTY_PORT", "43637"},
                  {"SLURM_PROCID", "0"},
                  {"SLURM_STEP_NUM_TASKS", "1"}}),
     kNotBySrun},
    {"SrunOfAShellScript", with(kSrun, {{"SLURM_JOB_NAME", "bash"}}), kBySrun},
};

INSTANTIATE_TEST_SUITE_P(LaunchEnvironment, EachLauncher, testing::ValuesIn(kCases),
                         [](const auto& test) { return test.param.name; });

TEST(LaunchEnvironment, ReadsTheEnvironmentByDefault) {
  setenv("MASTER_PORT", "none", 1);
  EXPECT_ERROR(read_launch_environment(), UsageError, "MASTER_PORT: expected a whole number");
  EXPECT_ERROR(require_launcher(), UsageError, "MASTER_PORT: expected a whole number");
  unsetenv("MASTER_PORT");
}

TEST(LaunchEnvironment, TorchrunsStoreIsUsedOnlyIfItsVariableIsTrue) {
  EXPECT_TRUE(read(kTorchrun).use_agent_store);
  EXPECT_FALSE(read(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "true"}})).use_agent_store);
  EXPECT_FALSE(read(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", ""}})).use_agent_store);
  EXPECT_FALSE(read(kEnv).use_agent_store);
}

TEST(LaunchEnvironment, TheSocketOfSpawnIsPassedOn) {
  EXPECT_EQ(read(with(kEnv, {{"LADDER_LISTEN_FD", "5"}})).listen_fd, 5);
  EXPECT_EQ(read(kEnv).listen_fd, std::nullopt);
}

TEST(LaunchEnvironment, IsASingleNodeIfAllRanksAreHere) {
  EXPECT_TRUE(read({}).is_single_node());
  EXPECT_TRUE(read(kTorchrun).is_single_node());
  EXPECT_FALSE(read(kSrunManyNodes).is_single_node());
}

struct Local {
  Table changes;
  int local_rank;
  int local_world_size;
};

TEST(LocalRank, IsCompletedFromWhatIsThere) {
  const Table four = with(kEnv, {{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node0"}});
  const std::vector<Local> locals = {
      {{}, 0, 1},
      {{{"LOCAL_RANK", "1"}}, 1, 2},
      {{{"LOCAL_WORLD_SIZE", "2"}}, 1, 2},
      {{{"LOCAL_WORLD_SIZE", "4"}}, 3, 4},
      {{{"MASTER_ADDR", "localhost"}}, 3, 4},
      {{{"MASTER_ADDR", "127.3.2.1"}}, 3, 4},
      {{{"MASTER_ADDR", "::1"}}, 3, 4},
      {{{"MASTER_ADDR", "localhost"}, {"LOCAL_RANK", "0"}}, 0, 4},
      {{{"MASTER_ADDR", "localhost"}, {"LOCAL_WORLD_SIZE", "2"}}, 1, 2},
      {{{"MASTER_ADDR", "localhost"}, {"KUBERNETES_SERVICE_HOST", "10.0.0.1"}}, 0, 1},
  };
  for (const auto& local : locals) {
    const auto result = read(with(four, local.changes));
    EXPECT_EQ(result.local_rank, local.local_rank) << testing::PrintToString(local.changes);
    EXPECT_EQ(result.local_world_size, local.local_world_size)
        << testing::PrintToString(local.changes);
  }
}

TEST(LocalRank, OfARankSetFromSrunIsThatOfSrun) {
  const auto result = read(with(
      kSrunManyNodes,
      {{"RANK", "3"}, {"WORLD_SIZE", "5"}, {"MASTER_ADDR", "host5"}, {"MASTER_PORT", "4000"}}));
  EXPECT_EQ(result.launcher, "env");
  EXPECT_EQ(result.local_rank, 1);
  EXPECT_EQ(result.local_world_size, 2);
}

TEST(LocalRank, OfARankSetFromSrunOrMpirunIsCheckedToo) {
  EXPECT_ERROR(read(with(with(kEnv, kSrun), {{"SLURM_LOCALID", "2"}})), UsageError,
               "SLURM_LOCALID: ");
  EXPECT_ERROR(read(with(with(kEnv, kOpenMpi), {{"OMPI_COMM_WORLD_LOCAL_RANK", "2"}})), UsageError,
               "OMPI_COMM_WORLD_LOCAL_RANK: ");
  EXPECT_ERROR(read(with(with(kEnv, kOpenMpi), {{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}})), UsageError,
               "OMPI_COMM_WORLD_LOCAL_SIZE: ");
}

TEST(HostList, FirstHost) {
  const std::map<std::string, std::string> hosts = {
      {"host[5-9,12]", "host5"}, {"host[12,5-9]", "host12"},   {"n[005-009]", "n005"},
      {"a1,b[2-3]", "a1"},       {"gpu[1-2]-ib,x", "gpu1-ib"}, {"rack[1-2]n[3-4]", "rack1n3"},
      {"node-a", "node-a"},      {"10.0.0.7", "10.0.0.7"},
  };
  for (const auto& [list, host] : hosts) {
    EXPECT_EQ(read(with(kSrunManyNodes, {{"SLURM_STEP_NODELIST", list}})).master_addr, host);
  }
}

TEST(HostList, IsNotUsedIfRank0MayRunOnAnyHost) {
  const auto arbitrary = with(kSrunManyNodes, {{"SLURM_DISTRIBUTION", "arbitrary"}});
  EXPECT_ERROR(
      read(arbitrary), UsageError,
      "MASTER_ADDR: expected the host of rank 0, as SLURM_DISTRIBUTION=arbitrary may start "
      "it on any host of the step, not set; hint: MASTER_ADDR=HOST srun -m arbitrary "
      "PROGRAM, or omit -m arbitrary");
  EXPECT_EQ(read(with(arbitrary, {{"MASTER_ADDR", "host9"}})).master_addr, "host9");
  EXPECT_EQ(read(with(kSrunManyNodes, {{"SLURM_DISTRIBUTION", "cyclic"}})).master_addr, "host5");
}

TEST(SlurmPort, DiffersBetweenStepsOfOneJobAndBetweenJobs) {
  const auto port = [](const char* job, const char* step) {
    return read(with(kSrun, {{"SLURM_JOB_ID", job}, {"SLURM_STEP_ID", step}})).master_port;
  };
  EXPECT_EQ(port("123456", "0"), 18456);
  EXPECT_EQ(port("123456", "1"), 19453);
  EXPECT_EQ(port("123456", "10"), 18426);
  EXPECT_EQ(port("123457", "0"), 18457);
  EXPECT_EQ(port("9223372036854775807", "4294967279"), 17970);
}

TEST(HostList, RefusesWhatIsNone) {
  for (const char* list : {"host[5-9", "host[]", "host[a-b]", ",a"}) {
    EXPECT_ERROR(read(with(kSrunManyNodes, {{"SLURM_STEP_NODELIST", list}})), UsageError,
                 "SLURM_STEP_NODELIST: expected a list of hosts such as host[5-9,12], got '" +
                     std::string(list) +
                     "'; hint: name the host of rank 0: MASTER_ADDR=HOST srun PROGRAM");
  }
}

TEST(TasksPerNode, AreThoseOfTheOwnMachine) {
  struct Row {
    const char* list;
    const char* node;
    int tasks;
  };
  for (const Row& row : {Row{"2(x3),4", "2", 2}, Row{"2(x3),4", "3", 4}, Row{"4,2", "0", 4},
                         Row{"4,2", "1", 2}, Row{"3", "0", 3}}) {
    const auto table =
        with(kSrunManyNodes, {{"SLURM_STEP_TASKS_PER_NODE", row.list}, {"SLURM_NODEID", row.node}});
    EXPECT_EQ(read(table).local_world_size, row.tasks) << row.list << " " << row.node;
  }
}

TEST(TasksPerNode, RefusesWhatIsNoList) {
  for (const char* list :
       {"two", "2(x", "2(x3", "2(x31", "2(x)", "(x2)", "0", "2,", "2(x0),2", "2(x1)"}) {
    EXPECT_ERROR(read(with(kSrunManyNodes, {{"SLURM_STEP_TASKS_PER_NODE", list}})), UsageError,
                 "SLURM_STEP_TASKS_PER_NODE: expected task counts of machines 0 to 1, such as "
                 "2(x3),1, got '" +
                     std::string(list) + "'");
  }
}

TEST(LaunchOptions, MakeALaunch) {
  const auto result =
      read({}, {.rank = 1, .world_size = 3, .master_addr = "localhost", .master_port = 4000});
  EXPECT_EQ(result.description(),
            "rank 1 of 3, local rank 1 of 3, by options (rank, world_size, master_addr, "
            "master_port), store localhost:4000");
}

TEST(LaunchOptions, AreCompletedByVariables) {
  const auto result =
      read({{"MASTER_ADDR", "node0"}, {"MASTER_PORT", "4000"}, {"WORLD_SIZE", "3"}}, {.rank = 1});
  EXPECT_EQ(result.description(),
            "rank 1 of 3, local rank 0 of 1, by options (rank, WORLD_SIZE, MASTER_ADDR, "
            "MASTER_PORT), store node0:4000");
}

TEST(LaunchOptions, NeedNoAddressForARendezvousInAFile) {
  const auto result = read({}, {.rank = 1, .world_size = 2, .needs_address = false});
  EXPECT_EQ(result.description(), "rank 1 of 2, local rank 1 of 2, by options (rank, world_size)");
  EXPECT_EQ(read(kOpenMpi, {.needs_address = false}).rank, 1);
  EXPECT_EQ(
      read(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}}),
           {.needs_address = false})
          .world_size,
      4);
}

TEST(LaunchOptions, MayRepeatTheLaunchersNumbers) {
  const LaunchOptions same{.rank = 1, .world_size = 2};
  for (const Table& table : {kTorchrun, kEnv, kOpenMpi, kMpich, kSrun}) {
    EXPECT_EQ(read(table, same).description(), read(table).description());
  }
}

TEST(LaunchOptions, SayTheAddressUnderMpirun) {
  const auto result = read(kOpenMpi, {.master_addr = "node0", .master_port = 4000});
  EXPECT_EQ(result.master_addr, "node0");
  EXPECT_EQ(result.master_port, 4000);
}

TEST(LaunchOptions, CountInAStepOfOneTask) {
  const Table one = {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}};
  const auto result =
      read(one, {.rank = 1, .world_size = 2, .master_addr = "node0", .master_port = 4000});
  EXPECT_EQ(result.launcher, "options");
  EXPECT_EQ(result.rank, 1);
}

TEST(LaunchOptions, ThatContradictTheLauncherAreRefused) {
  EXPECT_ERROR(read(with(kTorchrun, {{"RANK", "0"}}), {.rank = 1}), UsageError,
               "rank: 1 contradicts RANK=0; hint: omit rank, or: unset RANK");
  EXPECT_ERROR(read(kTorchrun, {.world_size = 4}), UsageError,
               "world_size: 4 contradicts WORLD_SIZE=2");
  EXPECT_ERROR(read(kTorchrun, {.master_addr = "node0"}), UsageError,
               "master_addr: node0 contradicts MASTER_ADDR=localhost");
  EXPECT_ERROR(read(kTorchrun, {.master_port = 1}), UsageError,
               "master_port: 1 contradicts MASTER_PORT=41321");
  EXPECT_ERROR(read(kOpenMpi, {.rank = 0}), UsageError,
               "rank: 0 contradicts OMPI_COMM_WORLD_RANK=1");
  EXPECT_ERROR(read(kSrun, {.rank = 0, .world_size = 2}), UsageError,
               "rank: 0 contradicts SLURM_PROCID=1");
  EXPECT_ERROR(read(kSrun, {.world_size = 4}), UsageError,
               "world_size: 4 contradicts SLURM_STEP_NUM_TASKS=2");
}

TEST(LaunchOptions, OutOfRangeAreRefused) {
  EXPECT_ERROR(read({}, {.master_port = 65536}), UsageError,
               "master_port: expected 1 to 65535, got 65536");
  EXPECT_ERROR(read({}, {.rank = -1, .world_size = 2, .needs_address = false}), UsageError,
               "rank: expected 0 to 1, as world_size is 2, got -1");
  EXPECT_ERROR(read({}, {.rank = 0, .world_size = 0, .needs_address = false}), UsageError,
               "world_size: expected 1 to 100000, got 0; hint: it is the number of processes");
}

TEST(HalfSet, AllMissingVariablesAreNamedWithCommandsThatSetThem) {
  EXPECT_ERROR(
      read({{"RANK", "0"}, {"WORLD_SIZE", "4"}}), UsageError,
      "MASTER_ADDR, MASTER_PORT: expected all of RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT "
      "or none, not set; hint: torchrun --standalone --nproc-per-node 4 --no-python "
      "PROGRAM, or by hand, once per rank: RANK=0 WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 "
      "MASTER_PORT=29500 PROGRAM, or, for one process: unset RANK WORLD_SIZE");
  EXPECT_ERROR(read({{"RANK", "3"}}), UsageError, "WORLD_SIZE, MASTER_ADDR, MASTER_PORT: ");
  EXPECT_ERROR(read({{"RANK", "3"}}), UsageError, "RANK=3 WORLD_SIZE=4 ");
  EXPECT_ERROR(read({{"RANK", "2147483647"}}), UsageError,
               "RANK=2147483647 WORLD_SIZE=2147483648 ");
  EXPECT_ERROR(read({{"LOCAL_RANK", "0"}}), UsageError,
               "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT: ");
  EXPECT_ERROR(read({}, {.rank = 0, .program = "build/bin/stage3"}), UsageError,
               "MASTER_PORT=29500 build/bin/stage3");
  EXPECT_ERROR(read({{"RANK", "0"}}, {.needs_address = false}), UsageError,
               "WORLD_SIZE: expected both of RANK, WORLD_SIZE or none, not set");
}

TEST(HalfSet, EachOfTheFourIsNamed) {
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    EXPECT_ERROR(read(with(kEnv, {{name, ""}})), UsageError, std::string(name) + ": expected all");
  }
}

TEST(HalfSet, VariablesOfSrunAndMpirunAreNamed) {
  EXPECT_ERROR(
      read(with(kSrun, {{"SLURM_PROCID", ""}, {"SLURM_LOCALID", ""}})), UsageError,
      "SLURM_PROCID, SLURM_LOCALID: expected a number together with SLURM_STEP_ID, not set");
  EXPECT_ERROR(read(with(kSrun, {{"SLURM_STEP_NUM_TASKS", ""}, {"SLURM_NTASKS", ""}})), UsageError,
               "SLURM_STEP_NUM_TASKS: expected a number");
  EXPECT_ERROR(read(with(kSrun, {{"SLURM_JOB_ID", ""}})), UsageError, "SLURM_JOB_ID: expected");
  EXPECT_ERROR(read({{"PMI_RANK", "1"}}), UsageError,
               "PMI_SIZE: expected a number together with PMI_RANK, not set");
  EXPECT_ERROR(read({{"OMPI_COMM_WORLD_SIZE", "1"}}), UsageError, "OMPI_COMM_WORLD_RANK: expected");
}

TEST(HalfSet, TwoMpisThatContradictEachOtherAreRefused) {
  const Table both = {{"PMI_RANK", "1"},
                      {"PMI_SIZE", "2"},
                      {"OMPI_COMM_WORLD_RANK", "0"},
                      {"OMPI_COMM_WORLD_SIZE", "1"}};
  EXPECT_ERROR(read(both), UsageError, " contradicts ");
}

TEST(HalfSet, MpirunOnSeveralMachinesNeedsAnAddress) {
  const std::string text =
      "MASTER_ADDR: expected the host of rank 0, as mpirun runs on several machines, not set; "
      "hint: MASTER_ADDR=HOST mpirun -x MASTER_ADDR -n 4 PROGRAM";
  EXPECT_ERROR(read(with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "4"}})), UsageError, text);
  EXPECT_ERROR(read({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}}), UsageError, text);
}

// What `accelerate launch --cpu --num_processes 2` sets: it starts one process.
TEST(HalfSet, AccelerateThatStartedOneProcessForSeveralIsRefused) {
  const Table table = {{"ACCELERATE_MIXED_PRECISION", "no"},
                       {"ACCELERATE_USE_CPU", "True"},
                       {"MASTER_ADDR", "127.0.0.1"},
                       {"MASTER_PORT", "29500"}};
  EXPECT_ERROR(read(table), UsageError, "accelerate launch: started one process");
  EXPECT_EQ(read(with(table, kOpenMpi)).launcher, "mpirun");
}

struct Bad {
  std::string name;
  std::string value;
  std::string expected;
};

TEST(Values, ThatAreNoNumbersOrOutOfRangeAreRefusedByName) {
  const std::vector<Bad> all = {
      {"RANK", "one", "RANK: expected a whole number, 0 to 2147483647, got 'one'; hint: set RANK"},
      {"RANK", "1.0", "RANK: expected a whole number"},
      {"RANK", "-1", "RANK: expected a whole number"},
      {"RANK", "2", "RANK: expected 0 to 1, as WORLD_SIZE is 2, got 2; hint: ranks count from 0"},
      {"WORLD_SIZE", "0", "WORLD_SIZE: expected a whole number, 1 to"},
      {"WORLD_SIZE", "99999999999", "WORLD_SIZE: expected a whole number, 1 to"},
      {"LOCAL_RANK", "x", "LOCAL_RANK: expected a whole number"},
      {"LOCAL_RANK", "2", "LOCAL_RANK: expected 0 to 1, as LOCAL_WORLD_SIZE is 2, got 2"},
      {"LOCAL_WORLD_SIZE", "0", "LOCAL_WORLD_SIZE: expected a whole number, 1 to"},
      {"LOCAL_WORLD_SIZE", "3", "LOCAL_WORLD_SIZE: expected 1 to 2, as WORLD_SIZE is 2, got 3"},
      {"MASTER_PORT", "0", "MASTER_PORT: expected a whole number, 1 to 65535, got '0'"},
      {"MASTER_PORT", "65536", "MASTER_PORT: expected a whole number, 1 to 65535"},
      {"MASTER_PORT", "http", "MASTER_PORT: expected a whole number, 1 to 65535"},
      {"TORCHELASTIC_RESTART_COUNT", "-1", "TORCHELASTIC_RESTART_COUNT: expected"},
      {"LADDER_LISTEN_FD", "stdin", "LADDER_LISTEN_FD: expected"},
  };
  for (const auto& bad : all) {
    EXPECT_ERROR(read(with(kTorchrun, {{bad.name, bad.value}})), UsageError, bad.expected);
  }
  EXPECT_ERROR(read(with(kEnv, {{"LOCAL_RANK", "2"}})), UsageError,
               "LOCAL_RANK: expected 0 to 1, as WORLD_SIZE is 2, got 2");
}

TEST(Values, OfSrunAndMpirunAreCheckedToo) {
  EXPECT_ERROR(read(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "2"}})), UsageError,
               "OMPI_COMM_WORLD_RANK: expected 0 to 1, as OMPI_COMM_WORLD_SIZE is 2, got 2");
  EXPECT_ERROR(read(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}})), UsageError,
               "OMPI_COMM_WORLD_LOCAL_SIZE: expected 1 to 2");
  EXPECT_ERROR(read(with(kSrun, {{"SLURM_PROCID", "2"}})), UsageError,
               "SLURM_PROCID: expected 0 to 1, as SLURM_STEP_NUM_TASKS is 2, got 2");
  EXPECT_ERROR(read(with(kSrun, {{"SLURM_STEP_ID", "first"}})), UsageError,
               "SLURM_STEP_ID: expected a whole number");
}

// Ranks of `outer`, and a program in it that torchrun or a person gave RANK=1 of 2.
TEST(TwoLaunchers, MpirunInsideTorchrunIsRefusedOnEveryRank) {
  for (const char* rank : {"0", "1"}) {
    EXPECT_ERROR(read(with(with(kTorchrun, kOpenMpi), {{"OMPI_COMM_WORLD_RANK", rank}})),
                 UsageError,
                 "torchrun: started for one machine, but there are 2 tasks of mpirun; hint: use "
                 "one launcher: "
                 "torchrun --standalone --nproc-per-node 2 --no-python PROGRAM; or one torchrun "
                 "per machine: "
                 "mpirun -n 2 torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint HOST:29400 "
                 "--no-python PROGRAM; or only torchrun: env -u OMPI_COMM_WORLD_RANK -u "
                 "OMPI_COMM_WORLD_SIZE PROGRAM");
  }
}

TEST(TwoLaunchers, TorchrunsThatDoNotKnowEachOtherAreRefused) {
  EXPECT_ERROR(read(with(kTorchrun, kSrun)), UsageError,
               "torchrun: started for one machine, but there are 2 tasks of srun");
}

TEST(TwoLaunchers, OneTorchrunAMachineIsWhatSrunAndMpirunMayStart) {
  const Table four = with(kTorchrun, {{"RANK", "2"},
                                      {"WORLD_SIZE", "4"},
                                      {"GROUP_WORLD_SIZE", "2"},
                                      {"LOCAL_RANK", "0"},
                                      {"MASTER_ADDR", "node0"}});
  for (const Table& tasks : {kSrun, kOpenMpi, kMpich}) {
    const auto result = read(with(four, tasks));
    EXPECT_EQ(result.launcher, "torchrun");
    EXPECT_EQ(result.rank, 2);
    EXPECT_EQ(result.world_size, 4);
  }
}

TEST(TwoLaunchers, AStepOfOneTaskMayStartAnotherLauncher) {
  const Table one_task = {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}};
  const Table one_step = with(kSrun, {{"SLURM_PROCID", "0"},
                                      {"SLURM_LOCALID", "0"},
                                      {"SLURM_STEP_NUM_TASKS", "1"},
                                      {"SLURM_STEP_TASKS_PER_NODE", "1"}});
  EXPECT_EQ(read(with(one_task, kTorchrun)).description(), kByTorchrun);
  EXPECT_EQ(read(with(one_step, kTorchrun)).description(), kByTorchrun);
  EXPECT_EQ(read(with(one_step, kEnv)).description(), kByEnv);
  EXPECT_EQ(read(with(one_step, kOpenMpi)).description(), kByMpirun);
}

TEST(TwoLaunchers, ARankByHandThatIsNotThatOfMpirunOrSrunIsRefused) {
  EXPECT_ERROR(
      read(with(with(kEnv, kOpenMpi), {{"RANK", "0"}})), UsageError,
      "RANK: RANK=0, WORLD_SIZE=2 by env contradicts OMPI_COMM_WORLD_RANK=1, "
      "OMPI_COMM_WORLD_SIZE=2 "
      "by mpirun; hint: use one launcher: torchrun --standalone --nproc-per-node 2 --no-python "
      "PROGRAM, or: mpirun -n 2 PROGRAM, or: srun -n 2 PROGRAM; or only env: env -u "
      "OMPI_COMM_WORLD_RANK -u OMPI_COMM_WORLD_SIZE PROGRAM");
  EXPECT_ERROR(read(with(with(kEnv, kSrun), {{"WORLD_SIZE", "3"}})), UsageError,
               "contradicts SLURM_PROCID=1, SLURM_STEP_NUM_TASKS=2 by srun");
  EXPECT_EQ(read(with(kEnv, kOpenMpi)).launcher, "env");
}

TEST(TwoLaunchers, RanksByHandMayFillTheTasksOfSrun) {
  const Table two_each = with(with(kEnv, kSrun), {{"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}});
  EXPECT_EQ(read(with(two_each, {{"RANK", "3"}, {"LOCAL_RANK", "1"}})).rank, 3);
  EXPECT_EQ(read(with(two_each, {{"RANK", "2"}, {"LOCAL_RANK", "0"}})).rank, 2);
  EXPECT_ERROR(read(with(two_each, {{"RANK", "1"}, {"LOCAL_RANK", "1"}})), UsageError,
               "contradicts SLURM_PROCID=1");
}

TEST(TwoLaunchers, SrunMayCarryTheDaemonsOfMpirun) {
  const Table four = with(
      kOpenMpi,
      {{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"MASTER_ADDR", "node0"}});
  EXPECT_EQ(read(with(kSrun, four)).launcher, "mpirun");
  EXPECT_EQ(read(with(kSrun, four)).rank, 3);
}

TEST(TwoLaunchers, MpirunsThatSrunStartedEachAloneAreRefused) {
  EXPECT_ERROR(
      read(with(kSrun, {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}})), UsageError,
      "OMPI_COMM_WORLD_RANK: OMPI_COMM_WORLD_RANK=0, OMPI_COMM_WORLD_SIZE=1 by mpirun contradicts "
      "SLURM_PROCID=1, SLURM_STEP_NUM_TASKS=2 by srun");
}

TEST(TwoLaunchers, AShellInAStepOfSeveralTasksMustSayWhatIsMeant) {
  const Table shell = with(kSrun, {{"SLURM_JOB_NAME", "bash"}, {"SLURM_PTY_PORT", "43637"}});
  EXPECT_ERROR(
      read(shell), UsageError,
      "srun: cannot distinguish a launch of 2 tasks from a shell in the first of them; hint: "
      "SLURM_JOB_NAME=train srun -n 2 PROGRAM, or, for one process: env -u SLURM_STEP_ID -u "
      "SLURM_STEPID PROGRAM");
  EXPECT_EQ(read(with(shell, {{"SLURM_JOB_NAME", "train"}})).description(), kBySrun);
  EXPECT_EQ(read(with(shell, {{"SLURM_STEP_ID", ""}, {"SLURM_STEPID", ""}})).description(),
            kNotBySrun);
  EXPECT_EQ(read(with(shell, kTorchrun)).description(), kByTorchrun);
  EXPECT_EQ(read(with(shell, kOpenMpi)).description(), kByMpirun);
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
  EXPECT_ERROR(require_launcher({}, lookup_in({{"MASTER_ADDR", "a"}})), UsageError,
               "launcher variables not set: RANK, WORLD_SIZE, MASTER_PORT; hint");
}

TEST(RequireLauncher, ProposesSrunInABatchScript) {
  EXPECT_ERROR(require_launcher({}, lookup_in(kBatchScript)), UsageError,
               "hint: in this SLURM job: srun PROGRAM, or: torchrun ");
}

}  // namespace
}  // namespace ladder
