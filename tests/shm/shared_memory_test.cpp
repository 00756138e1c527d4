// SPDX-License-Identifier: Apache-2.0
#include "ladder/shm/shared_memory.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <latch>
#include <memory>
#include <random>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ladder/comm/c10d_group.h"
#include "ladder/core/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using std::chrono::milliseconds;
using Bytes = std::vector<std::byte>;
using Clock = std::chrono::steady_clock;

std::vector<std::string> all_gather(const ProcessGroup& group, const std::string& own) {
  const auto text = torch::tensor(std::vector<std::uint8_t>(own.begin(), own.end()), torch::kUInt8);
  std::vector<std::string> all;
  for (const auto& tensor : group.all_gather(text)) {
    const auto* begin = tensor.const_data_ptr<std::uint8_t>();
    all.emplace_back(begin, begin + tensor.numel());
  }
  return all;
}

std::unique_ptr<SharedMemory> make(const ProcessGroup& group) {
  return SharedMemory::make(group.rank(), group.world_size(),
                            [&](const std::string& own) { return all_gather(group, own); });
}

// Other bytes on each rank, in each round and at each place.
Bytes bytes_of(int rank, std::size_t round, std::size_t count) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::byte>((i * 7 + i / 251 + round * 31) % 256 ^
                                      static_cast<std::size_t>(rank * 85));
  }
  return bytes;
}

// What all ranks published, as this one read it, in rank order.
std::vector<Bytes> published_by_all(SharedMemory& memory, int world_size, const Bytes& own,
                                    milliseconds timeout = kTimeout,
                                    const std::string& operation = "all_reduce") {
  std::vector<Bytes> all(static_cast<std::size_t>(world_size));
  const auto consume = [&](int rank, std::size_t offset, std::span<const std::byte> piece) {
    auto& bytes = all[static_cast<std::size_t>(rank)];
    EXPECT_EQ(offset, bytes.size()) << "pieces in order";
    bytes.insert(bytes.end(), piece.begin(), piece.end());
  };
  memory.exchange({.operation = operation, .form = ""}, own, consume, timeout);
  return all;
}

// A slot that is written too early, or read too early, would show in one of so many fast rounds.
TEST(SharedMemory, ExchangesAnyNumberOfBytesAndKeepsThemInManyFastRounds) {
  const auto check = [](const ProcessGroup& group) {
    const auto memory = make(group);
    ASSERT_NE(memory, nullptr);
    const int world = group.world_size();
    const auto exchange = [&](std::size_t round, std::size_t count) {
      const auto all = published_by_all(*memory, world, bytes_of(group.rank(), round, count));
      for (int rank = 0; rank < world; ++rank) {
        ASSERT_EQ(all.at(static_cast<std::size_t>(rank)), bytes_of(rank, round, count))
            << count << " bytes in round " << round;
      }
    };
    constexpr auto kChunkBytes = SharedMemory::kChunkBytes;
    for (const auto count : {std::size_t{0}, std::size_t{1}, kChunkBytes - 1, kChunkBytes,
                             kChunkBytes + 1, 3 * kChunkBytes + 5}) {
      exchange(0, count);
    }
    std::minstd_rand random(static_cast<unsigned>(group.rank()) + 1);
    const std::size_t rounds = world > 4 ? 20 : 3'000;
    for (std::size_t round = 0; round < rounds && !testing::Test::HasFatalFailure(); ++round) {
      for (volatile auto left = random() % 3'000; left > 0;) left = left - 1;
      exchange(round, 100);
    }
  };
  for (const int world : {2, 4, SharedMemory::kMaxRanks}) run_ranks(world, check);
}

// All ranks decide alike, also those that could share memory.
TEST_ON_RANKS(SharedMemory, IsRefusedByAllWhereOneRankIsElsewhereOrCannotOpenIt, 3) {
  const auto of_another_machine = [&](const std::string& own) {
    return all_gather(group, group.rank() == 1 ? "elsewhere/" + own : own);
  };
  EXPECT_EQ(SharedMemory::make(group.rank(), 3, of_another_machine), nullptr);
  const auto misled = [&](const std::string& own) {
    auto all = all_gather(group, own);
    const auto last_word = all.front().rfind(' ');
    if (group.rank() == 2 && last_word != std::string::npos) {
      all.front().replace(last_word, std::string::npos, " 1000000");
    }
    return all;
  };
  EXPECT_EQ(SharedMemory::make(group.rank(), 3, misled), nullptr);
}

TEST(SharedMemory, IsRefusedForMoreRanksThanItIsFastFor) {
  const auto unused = [](const std::string&) -> std::vector<std::string> {
    ADD_FAILURE() << "the number of ranks decides";
    return {};
  };
  EXPECT_EQ(SharedMemory::make(0, SharedMemory::kMaxRanks + 1, unused), nullptr);
}

TEST_ON_RANKS(SharedMemory, NamesALateRankAndIsNotUsedAgain, 2) {
  const auto memory = make(group);
  ASSERT_NE(memory, nullptr);
  if (group.rank() == 0) {
    const auto start = Clock::now();
    EXPECT_ERROR(published_by_all(*memory, 2, Bytes(10), milliseconds(300)), DistributedError,
                 "all_reduce on rank 0 of 2: timed out after 0.3 s waiting for rank 1; hint: ");
    EXPECT_GE(Clock::now() - start, milliseconds(300));
    EXPECT_LT(Clock::now() - start, milliseconds(3'000));
    EXPECT_ERROR(published_by_all(*memory, 2, Bytes(10)), DistributedError,
                 "an earlier collective failed");
  }
  group.barrier();
}

// A memory is not used again after an error, so each case has its own.
TEST_ON_RANKS(SharedMemory, NamesBothCallsWhereTheyDiffer, 2) {
  const bool first = group.rank() == 0;
  const auto expect_refused = [&](std::size_t bytes, const std::string& operation,
                                  const std::string& message) {
    const auto memory = make(group);
    ASSERT_NE(memory, nullptr);
    EXPECT_ERROR(published_by_all(*memory, 2, Bytes(bytes), kTimeout, operation), DistributedError,
                 message);
    group.barrier();
  };
  expect_refused(
      first ? 10 : 11, "all_reduce",
      first ? "rank 1 called all_reduce (11 bytes), this rank called all_reduce (10 bytes)"
            : "rank 0 called all_reduce (10 bytes), this rank called all_reduce (11 bytes)");
  expect_refused(first ? 0 : 8, "all_reduce", "(0 bytes)");
  // With eight bytes each, as most collectives of a training loop have.
  expect_refused(8, first ? "all_reduce" : "all_gather", "all_gather (8 bytes)");
}

TEST_ON_RANKS(SharedMemory, FailsOnAllRanksAtOnceWhenOneFails, 3) {
  const auto memory = make(group);
  ASSERT_NE(memory, nullptr);
  const auto start = Clock::now();
  if (group.rank() == 1) {
    const auto refuse = [](int, std::size_t, std::span<const std::byte>) {
      throw std::runtime_error("a mistake while reading");
    };
    EXPECT_THROW(memory->exchange({"all_reduce", ""}, Bytes(8), refuse, kTimeout),
                 std::runtime_error);
  } else {
    published_by_all(*memory, 3, Bytes(8));
    EXPECT_ERROR(published_by_all(*memory, 3, Bytes(8)), DistributedError, "has failed");
  }
  EXPECT_LT(Clock::now() - start, milliseconds(5'000));
  group.barrier();
}

// Ranks as threads of one process: ThreadSanitizer sees what those of one rank share.
class RanksInThreads {
 public:
  std::unique_ptr<SharedMemory> make(int rank) {
    return SharedMemory::make(rank, 2, [this, rank](const std::string& own) {
      texts_[static_cast<std::size_t>(rank)] = own;
      meeting_.arrive_and_wait();
      const std::vector<std::string> all(texts_.begin(), texts_.end());
      meeting_.arrive_and_wait();
      return all;
    });
  }

 private:
  std::array<std::string, 2> texts_;
  std::barrier<> meeting_{2};
};

void transfer_both_ways(SharedMemory& memory, int rank, std::size_t round) {
  auto sent = bytes_of(rank, round, 700 * round);
  Bytes received(sent.size());
  const auto start = [&](bool sends, Bytes& bytes) {
    return memory.start(
        {.peer = 1 - rank, .sends = sends, .form = "bytes", .bytes = bytes, .owner = nullptr});
  };
  const auto sends = start(true, sent);
  const auto receives = start(false, received);
  while (!memory.has_ended(*receives)) std::this_thread::yield();
  memory.wait(sends, kTimeout);
  EXPECT_EQ(received, bytes_of(1 - rank, round, 700 * round));
}

TEST_ALONE(SharedMemoryThreads, CollectAndTransferInSeveralGroupsAtOnce) {
  constexpr std::size_t kRounds = 200;
  std::array<RanksInThreads, 2> groups;
  const auto use = [&](RanksInThreads& group, int rank) {
    const auto memory = group.make(rank);
    ASSERT_NE(memory, nullptr);
    const auto gather = [&] {
      for (std::size_t round = 0; round < kRounds; ++round) {
        const auto lock = memory->hold();
        for (int twice = 0; twice < 2; ++twice) {
          published_by_all(*memory, 2, Bytes(100), kTimeout, twice == 0 ? "first" : "second");
        }
      }
    };
    const auto transfer = [&] {
      for (std::size_t round = 0; round < kRounds; ++round) {
        transfer_both_ways(*memory, rank, round);
      }
    };
    const std::jthread one(gather), another(gather), third(transfer);
  };
  std::vector<std::jthread> ranks;
  for (auto& group : groups) {
    for (const int rank : {0, 1}) ranks.emplace_back([&, rank] { use(group, rank); });
  }
}

TEST_ALONE(SharedMemoryThreads, AllEndTheirWaitsWhenOneAborts) {
  RanksInThreads group;
  const auto start = Clock::now();
  const std::jthread second([&] {
    const auto memory = group.make(1);
    published_by_all(*memory, 2, Bytes(8));
    EXPECT_ERROR(published_by_all(*memory, 2, Bytes(8)), DistributedError, "rank 0 has failed");
  });
  const auto memory = group.make(0);
  published_by_all(*memory, 2, Bytes(8));
  std::latch waits(1);
  std::jthread receiver([&] {
    Bytes bytes(8);
    const auto receives = memory->start(
        {.peer = 1, .sends = false, .form = "bytes", .bytes = bytes, .owner = nullptr});
    waits.count_down();
    EXPECT_ERROR(memory->wait(receives, kTimeout), DistributedError, "the group was aborted");
  });
  waits.wait();
  for (int i = 0; i < 1'000; ++i) std::this_thread::yield();  // it is within the wait by then
  memory->abort();
  EXPECT_ERROR(published_by_all(*memory, 2, Bytes(8)), DistributedError, "the group was aborted");
  receiver.join();
  EXPECT_LT(Clock::now() - start, milliseconds(5'000));
}

// Of all processes, those that map the memory with this number.
int processes_that_map(const std::string& inode) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream maps(entry.path() / "maps");
    const std::string text{std::istreambuf_iterator<char>(maps), {}};
    if (text.find(" " + inode + " ") != std::string::npos) ++count;
  }
  return count;
}

std::string inode_of_shared_memory() {
  std::ifstream maps("/proc/self/maps");
  std::string line, range, mode, offset, device, inode;
  while (std::getline(maps, line)) {
    if (line.find("memfd:ladder_shared_memory") == std::string::npos) continue;
    std::istringstream(line) >> range >> mode >> offset >> device >> inode;
  }
  return inode;
}

std::vector<std::string> named_memory() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    names.push_back(entry.path().filename());
  }
  std::ranges::sort(names);
  return names;
}

TEST(SharedMemory, LeavesNothingBehindWhenAllRanksAreKilled) {
  const TemporaryFolder folder;
  const auto before = named_memory();
  const auto end = end_of_group(2, [&](const ProcessGroup& group) {
    const auto memory = make(group);
    published_by_all(*memory, 2, Bytes(SharedMemory::kChunkBytes));
    const auto inode = inode_of_shared_memory();
    EXPECT_GE(processes_that_map(inode), 1);
    EXPECT_EQ(named_memory(), before);
    std::ofstream(folder.file(std::to_string(group.rank()))) << inode;
    published_by_all(*memory, 2, Bytes(8));
    ::raise(SIGKILL);
  });
  EXPECT_NE(end.exit_code, 0);
  for (const std::string rank : {"0", "1"}) {
    std::string inode;
    std::ifstream(folder.file(rank)) >> inode;
    ASSERT_NE(inode, "");
    EXPECT_EQ(processes_that_map(inode), 0);
  }
  EXPECT_EQ(named_memory(), before);
}

TEST(SharedMemoryBackend, NamesTagsThatDiffer) {
  const auto check = [](const ProcessGroup& group) {
    const auto backend = c10d_group(group)->getBackend(c10::kCPU);
    std::vector<at::Tensor> tensors = {torch::ones({3})};
    if (group.rank() == 0) {
      backend->send(tensors, 1, 2);
      group.barrier();
    } else {
      EXPECT_ERROR(backend->recv(tensors, 0, 1)->wait(), DistributedError,
                   "rank 0 sent Float [3], tag 2, this rank expected Float [3], tag 1");
    }
  };
  expect_ended_with(end_of_group(2, check, {.backend = "shm"}), 4, "rank 1 has failed");
}

TEST(SharedMemoryBackend, GathersIntoStridedOutputs) {
  const auto check = [](const ProcessGroup& group) {
    const auto backend = c10d_group(group)->getBackend(c10::kCPU);
    std::vector<at::Tensor> inputs = {torch::full({2, 3}, group.rank() + 1.0)};
    const auto strided = [] { return torch::zeros({3, 2}).t(); };
    std::vector<std::vector<at::Tensor>> outputs = {{strided(), strided()}};
    backend->allgather(outputs, inputs)->wait();
    EXPECT_TRUE(outputs[0][0].equal(torch::ones({2, 3})));
    EXPECT_TRUE(outputs[0][1].equal(torch::full({2, 3}, 2.0)));
  };
  run_ranks(2, check, {.backend = "shm"});
}

TEST(SharedMemoryBackend, PollsTransfersAndHasATimeoutPerCall) {
  const auto check = [](const ProcessGroup& group) {
    const auto backend = c10d_group(group)->getBackend(c10::kCPU);
    std::vector<at::Tensor> tensors = {torch::ones({3})};
    const int other = 1 - group.rank();
    const auto sent = backend->send(tensors, other, 7);
    std::vector<at::Tensor> received = {torch::zeros({3})};
    const auto work = backend->recv(received, other, 7);
    while (!work->isCompleted()) std::this_thread::yield();
    work->wait();
    sent->wait();
    EXPECT_TRUE(received.front().equal(tensors.front()));
    EXPECT_ERROR(backend->recvAnysource(received, 0), UsageError, "name the rank that sends");
    if (group.rank() == 0) {
      c10d::AllreduceOptions options;
      options.timeout = milliseconds(200);
      EXPECT_ERROR(backend->allreduce(tensors, options), DistributedError,
                   "timed out after 0.2 s waiting for rank 1");
    } else {
      EXPECT_ERROR(backend->recv(received, 0, 0)->wait(), DistributedError, "rank 0 has failed");
    }
  };
  run_ranks(2, check, {.backend = "shm"});
}

}  // namespace
}  // namespace ladder
