// SPDX-License-Identifier: Apache-2.0
#include "ladder/comm/init_process_group.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>
#include <torch/types.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>

#include "ladder/comm/backends.h"
#include "ladder/comm/process_group_options.h"
#include "ladder/core/error.h"
#include "ladder/core/gpus.h"
#include "ladder/launch/listening_socket.h"
#include "ladder/shm/shared_memory.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/sockets.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kShortTimeout{1'000};

void expect_sum_of_ranks(const ProcessGroup& group) {
  auto sum = torch::tensor({group.rank()});
  group.all_reduce(sum);
  EXPECT_EQ(sum.item<int>(), group.world_size() * (group.world_size() - 1) / 2);
}

// A port that was free a moment ago.
int free_port() { return ListeningSocket().port(); }

void set_place(int rank, int world_size, int port) {
  forget_launcher();
  setenv("RANK", std::to_string(rank).c_str(), 1);
  setenv("WORLD_SIZE", std::to_string(world_size).c_str(), 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
}

ProcessGroupOptions in_file(const TemporaryFolder& folder, const std::string& name = "store") {
  return {.backend = "gloo", .init_method = "file://" + folder.file(name), .timeout = kTimeout};
}

int thread_count() {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    count += task.exists() ? 1 : 0;
  }
  return count;
}

// An agent of torchrun that joins a run later counts fewer restarts than the others.
TEST(InitProcessGroup, RanksOfAgentsWithDifferentRestartCountsMeetInTheStoreOfRankZero) {
  expect_well(end_of_ranks(2, [](int rank) {
    setenv("TORCHELASTIC_RESTART_COUNT", rank == 0 ? "2" : "0", 1);
    const auto group = init_process_group({.backend = "gloo", .timeout = milliseconds(5'000)});
    group.barrier();
  }));
}

TEST_ALONE(InitProcessGroup, IsASingleGroupWithoutALauncher) {
  forget_launcher();
  const auto sockets = socket_inodes();
  const auto group = init_process_group({.device = "cpu"});
  EXPECT_EQ(group.backend(), "single");
  EXPECT_EQ(group.world_size(), 1);
  EXPECT_EQ(socket_inodes(), sockets);
  EXPECT_ERROR(init_process_group({.require_launcher = true}), UsageError, "RANK");
}

TEST_ALONE(InitProcessGroup, FindsAPortOfItsOwnWithoutALauncher) {
  forget_launcher();
  const auto first = init_process_group({.backend = "gloo", .device = "cpu"});
  const auto second = init_process_group({.backend = "gloo", .device = "cpu"});
  EXPECT_EQ(first.backend(), "gloo");
  expect_sum_of_ranks(second);
}

// All-reduces that use shared memory if there is one.
void expect_sums(const ProcessGroup& group) {
  expect_sum_of_ranks(group);
  for (const auto dtype : {torch::kFloat32, torch::kFloat64}) {
    auto columns = torch::full({2, 3}, group.rank() + 1, dtype).t();  // not contiguous
    group.all_reduce(columns);
    const int world = group.world_size();
    EXPECT_TRUE(torch::equal(columns, torch::full({3, 2}, world * (world + 1) / 2, dtype)));
  }
  auto least = torch::tensor(static_cast<float>(group.rank()) + 0.5F);
  group.all_reduce(least, ReduceOp::kMin);
  EXPECT_EQ(least.item<float>(), 0.5F);
}

bool has_shared_memory() {
  std::ifstream maps("/proc/self/maps");
  const std::string text{std::istreambuf_iterator<char>(maps), {}};
  return text.find("memfd:ladder_shared_memory") != std::string::npos;
}

TEST(InitProcessGroup, ChoosesSharedMemoryForRanksOnTheCpuOfOneMachine) {
  for (const std::string backend : {"auto", "shm", "gloo"}) {
    expect_well(end_of_ranks(2, [&](int /*rank*/) {
      const auto group =
          init_process_group({.backend = backend, .timeout = kTimeout, .device = "cpu"});
      EXPECT_EQ(group.backend(), backend == "gloo" ? "gloo" : "shm");
      EXPECT_EQ(has_shared_memory(), backend != "gloo");
      expect_sums(group);
    }));
  }
}

// The store of one machine is at 127.0.0.1, whatever MASTER_ADDR is.
TEST(InitProcessGroup, OnOneMachineUsesTheLoopbackInterfaceWhateverMasterAddrIs) {
  const int port = free_port();
  expect_well(end_of_ranks(2, [&](int rank) {
    set_place(rank, 2, port);
    setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    setenv("MASTER_ADDR", "127.0.0.2", 1);
    expect_sum_of_ranks(init_process_group({.timeout = kShortTimeout, .device = "cpu"}));
  }));
}

TEST(InitProcessGroup, ChoosesGlooForManyRanksAndRefusesToShareTheirMemory) {
  const TemporaryFolder folder;
  expect_well(end_of_ranks(SharedMemory::kMaxRanks + 1, [&](int /*rank*/) {
    auto shared = in_file(folder);
    shared.backend = "shm";
    EXPECT_ERROR(
        init_process_group(shared), UsageError,
        "backend shm: 17 ranks that do not share one machine's memory; hint: use backend gloo");
    const auto group = init_process_group({.timeout = kTimeout, .device = "cpu"});
    EXPECT_EQ(group.backend(), "gloo");
    expect_sums(group);
  }));
}

TEST(InitProcessGroup, ChoosesGlooForMoreThanEightRanksUnlessTheyNameSharedMemory) {
  for (const std::string backend : {"auto", "shm"}) {
    expect_well(end_of_ranks(9, [&](int /*rank*/) {
      const auto group =
          init_process_group({.backend = backend, .timeout = kTimeout, .device = "cpu"});
      EXPECT_EQ(group.backend(), backend == "shm" ? "shm" : "gloo");
      expect_sums(group);
    }));
  }
}

TEST(InitProcessGroup, UsesABackendThatTheProgramAdds) {
  expect_well(end_of_ranks(2, [](int /*rank*/) {
    const Backend more{
        .name = "more",
        .suits = [](const auto& options, const auto&) { return options.backend == "more"; },
        .make = [](auto& setup,
                   const auto& store) { return find_backend("gloo").make(setup, store); },
        .refused = nullptr};
    add_backend(more, "never");
    EXPECT_EQ(automatic_backends(), "more never, nccl with one GPU per rank, shm on one machine");
    const auto group =
        init_process_group({.backend = "more", .timeout = kTimeout, .device = "cpu"});
    EXPECT_EQ(group.backend(), "more");
    expect_sums(group);
  }));
}

TEST(InitProcessGroup, UsesTheAddressOfInitMethod) {
  for (const std::string host : {"127.0.0.1", "[::1]"}) {
    const int port = free_port();
    expect_well(end_of_ranks(2, [&](int rank) {
      forget_launcher();
      const auto group =
          init_process_group({.backend = "gloo",
                              .init_method = "tcp://" + host + ":" + std::to_string(port),
                              .rank = rank,
                              .world_size = 2,
                              .timeout = kTimeout});
      EXPECT_EQ(group.local_world_size(), 2);
      expect_sum_of_ranks(group);
      for (const auto& address : listening_addresses()) {
        EXPECT_TRUE(is_loopback(address)) << address;
      }
      group.barrier();
    }));
  }
}

TEST(InitProcessGroup, MakesFurtherGroupsByFilesBesideTheFirstAndOneAfterAnother) {
  const TemporaryFolder folder;
  run_ranks(2, [&](const ProcessGroup& first) {
    for (const std::string name : {"second", "third"}) {
      const auto other = init_process_group(in_file(folder, name));
      expect_sum_of_ranks(other);
      other.monitored_barrier();
      expect_sum_of_ranks(first);
    }
  });
}

// An exception that destroys the group also ends its threads and connections.
TEST(InitProcessGroup, GivesAGroupThatAnExceptionShutsDown) {
  const TemporaryFolder folder;
  expect_well(end_of_ranks(2, [&](int /*rank*/) {
    const auto fail_with_group = [&](const std::string& name) {
      const auto group = init_process_group(in_file(folder, name));
      expect_sum_of_ranks(group);
      EXPECT_GT(thread_count(), 1);
      throw std::runtime_error("a mistake");
    };
    EXPECT_THROW(fail_with_group("first"), std::runtime_error);
    const auto sockets = socket_inodes().size();
    const int threads = thread_count();
    EXPECT_THROW(fail_with_group("second"), std::runtime_error);
    EXPECT_LE(socket_inodes().size(), sockets);
    EXPECT_LE(thread_count(), threads);
  }));
}

// All ranks at one address, as `start` sets them.
RanksEnd end_of_start(int count, const std::function<void(int rank, int port)>& start,
                      milliseconds grace = RanksOptions().grace) {
  const int port = free_port();
  return end_of_ranks(count, [&](int rank) { start(rank, port); }, grace);
}

TEST(InitProcessGroup, RefusesWorldSizesThatDisagree) {
  const auto end = end_of_start(2, [](int rank, int port) {
    set_place(rank, rank == 0 ? 2 : 3, port);
    init_process_group({.backend = "gloo", .timeout = kTimeout});
  });
  expect_ended_with(end, 4, "WORLD_SIZE of rank ");
  expect_ended_with(end, 4, "as on another rank");
}

TEST(InitProcessGroup, RefusesSettingsThatDisagreeOnAllRanks) {
  const auto end = end_of_start(3, [](int rank, int port) {
    set_place(rank, 3, port);
    const auto* const seed = rank == 1 ? "43" : "42";
    init_process_group(
        {.backend = "gloo", .timeout = kTimeout, .settings = {{"--lr", "0.1"}, {"--seed", seed}}});
  });
  for (const std::string rank : {"0", "1", "2"}) {
    expect_ended_with(end, 4, "[rank " + rank + "] error: settings of rank ");
  }
  expect_ended_with(end, 4, "as on another rank, got --seed 4");
}

TEST(InitProcessGroup, RefusesAnInterfaceThatIsNotThere) {
  const auto end = end_of_start(2, [](int rank, int port) {
    set_place(rank, 2, port);
    ::setenv("GLOO_SOCKET_IFNAME", "none77", 1);
    init_process_group({.backend = "gloo", .timeout = kTimeout});
  });
  expect_ended_with(end, 2, "GLOO_SOCKET_IFNAME: expected one network interface");
}

TEST(InitProcessGroup, RefusesARankThatWasStartedTwice) {
  const auto start = [](int rank, int port) {
    set_place(rank == 0 ? 0 : 1, 3, port);
    init_process_group({.backend = "gloo", .timeout = milliseconds(3'000)});
  };
  const auto end = end_of_start(3, start, milliseconds(200));
  expect_ended_with(end, 4, "rank 1: expected one process, got a second one; ");
  expect_ended_with(end, 4, "or use the group that this program has made: an Accelerator");
}

TEST(InitProcessGroup, RefusesAFileOfAnEarlierRun) {
  const TemporaryFolder folder;
  const auto end = end_of_ranks(1, [&](int rank) {
    forget_launcher();
    auto options = in_file(folder);
    options.rank = rank;
    options.world_size = 1;
    const auto first = init_process_group(options);
    init_process_group(options);
  });
  expect_ended_with(end, 4, "with file://, a new file for each run");
}

TEST(InitProcessGroup, NamesTheMissingRanks) {
  const auto start = Clock::now();
  const auto start_rank = [](int /*rank*/) {
    setenv("WORLD_SIZE", "4", 1);
    setenv("LOCAL_WORLD_SIZE", "4", 1);
    init_process_group({.backend = "gloo", .timeout = milliseconds(500)});
  };
  const auto end = end_of_ranks(2, start_rank, milliseconds(200));
  EXPECT_LT(Clock::now() - start, milliseconds(8'000));
  expect_ended_with(end, 4, "rendezvous: timed out after 0.5 s waiting for ranks 2, 3 of 4; ");
}

TEST(InitProcessGroup, NamesTheAddressOfAStoreThatIsNotOpen) {
  const int port = free_port();
  const auto start = Clock::now();
  const auto end = end_of_ranks(1, [&](int /*rank*/) {
    set_place(1, 2, port);
    init_process_group({.backend = "gloo", .timeout = milliseconds(100)});
  });
  EXPECT_LT(Clock::now() - start, milliseconds(8'000));
  expect_ended_with(end, 4, "store at 127.0.0.1:" + std::to_string(port) + ": ");
  expect_ended_with(end, 4, "rank 0 opens it");
  expect_ended_with(end, 4, "timed out");  // c10d's own error, not that of a silent server
}

TEST(InitProcessGroup, NamesAPortThatIsInUse) {
  const ListeningSocket holder;
  const auto end = end_of_ranks(1, [&](int /*rank*/) {
    set_place(0, 2, holder.port());
    init_process_group({.backend = "gloo", .timeout = kShortTimeout});
  });
  expect_ended_with(end, 4, "MASTER_PORT " + std::to_string(holder.port()) + ": expected a free");
}

TEST(InitProcessGroup, RefusesBackendsAndMethodsItDoesNotKnow) {
  expect_well(end_of_ranks(1, [](int /*rank*/) {
    set_place(0, 2, free_port());
    EXPECT_ERROR(init_process_group({.backend = "single"}), UsageError, "backend: expected one of");
    EXPECT_ERROR(init_process_group({.backend = "glo"}), UsageError, "did you mean gloo?");
    for (const char* method : {"udp://host:1", "tcp://host", "tcp://:29500", "tcp://host:0",
                               "tcp://host:65536", "tcp://host:1x", "env"}) {
      EXPECT_ERROR(init_process_group({.init_method = method}), UsageError, "init_method: ");
    }
    EXPECT_ERROR(init_process_group({.init_method = "file://relative"}), UsageError,
                 "init_method: expected file:// and a full path");
    EXPECT_ERROR(init_process_group({.init_method = "file:///nonexistent/x"}), UsageError,
                 "hint: create the folder first: mkdir -p /nonexistent");
    EXPECT_ERROR(init_process_group({.init_method = "file:///dev/null/x"}), UsageError,
                 "hint: Not a directory: a part of the path is a file");
  }));
}

// Errors that no waiting mends: none of them takes the timeout.
TEST(InitProcessGroup, ReportsAtOnceAFileThatCannotBeMadeAndAMachineWithoutALoopback) {
  expect_well(end_of_ranks(1, [](int /*rank*/) {
    const auto start = std::chrono::steady_clock::now();
    set_place(0, 2, free_port());
    EXPECT_ERROR(init_process_group({.init_method = "file:///proc/nope"}), UsageError,
                 "/proc/nope");
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0) {
      EXPECT_ERROR(init_process_group({}), DistributedError,
                   "store at 127.0.0.1: no route to this host; hint: start the loopback: ip link");
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  }));
}

// One of two ranks: a rendezvous would fail with an error of the store.
TEST(InitProcessGroup, RefusesNcclWithTooFewGpusBeforeTheRendezvous) {
  if (visible_gpu_count() > 0) GTEST_SKIP() << "skipped: there is a GPU";
  expect_well(end_of_ranks(1, [](int /*rank*/) {
    set_place(1, 2, 1);
    EXPECT_ERROR(init_process_group({.backend = "nccl", .timeout = kShortTimeout}), UsageError,
                 "backend nccl: 2 ranks on this machine but 0 GPUs; hint: ");
  }));
}

TEST(InitProcessGroup, ReducesByNcclOnOneGpu) {
  if (visible_gpu_count() == 0) GTEST_SKIP() << "skipped: no GPU";
  expect_well(end_of_ranks(1, [](int /*rank*/) {
    const auto group = init_process_group({.backend = "nccl", .timeout = kTimeout});
    EXPECT_EQ(group.backend(), "nccl");
    auto sum = torch::full({3}, 2.0, torch::kCUDA);
    group.all_reduce(sum);
    EXPECT_TRUE(torch::equal(sum.cpu(), torch::full({3}, 2.0)));
    expect_sum_of_ranks(group);  // on the CPU, by Gloo
    group.barrier();
  }));
}

}  // namespace
}  // namespace ladder
