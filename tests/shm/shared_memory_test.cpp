// SPDX-License-Identifier: Apache-2.0
#include "ladder/shm/shared_memory.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <torch/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "ladder/core/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

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
    const auto exchange = [&](std::size_t round, std::size_t count) {
      const int world = group.world_size();
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
    for (std::size_t round = 0; round < 3'000 && !testing::Test::HasFatalFailure(); ++round) {
      for (volatile auto left = random() % 3'000; left > 0;) left = left - 1;
      exchange(round, 100);
    }
  };
  for (const int world : {2, 4}) run_ranks(world, check);
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
  EXPECT_EQ(SharedMemory::make(0, SharedMemory::kMostRanks + 1, unused), nullptr);
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

}  // namespace
}  // namespace ladder
