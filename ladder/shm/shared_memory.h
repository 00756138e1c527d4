// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace ladder {

// Exchanges bytes between processes of one machine through memory that all of them map. For a few
// megabytes that takes a fraction of the time of a socket, where the kernel copies each byte twice
// and wakes a thread for each message.
//
// protocol.h describes slots, counters and waits.
//
// The memory has no name in any folder (memfd_create): a rank that is killed leaves nothing behind,
// and a container's small /dev/shm is no limit. Processes of the same user that see this one in
// /proc can open it.
//
// Blocks the calling thread. Thread-safe: a rank's collectives run one at a time, in the order of
// their calls, which must be that of the other ranks; transfers proceed meanwhile.
class SharedMemory {
 public:
  // A collective: returns the texts of all ranks, in rank order.
  using AllGather = std::function<std::vector<std::string>(const std::string& own)>;

  // Gets a piece of the bytes of `rank`, which begins at `offset`.
  using Consume =
      std::function<void(int rank, std::size_t offset, std::span<const std::byte> piece)>;

  static constexpr std::size_t kChunkBytes{256 * 1024};  // per slot; stays in the L2 cache
  static constexpr int kMaxRanks = 16;                   // each rank reads the slots of all others

  // A collective; equal on all ranks.
  struct Call {
    std::string operation;  // "all_reduce", for errors
    std::string form;       // "sum, Float"; may be empty
    int from = -1;          // the only rank that publishes bytes; -1 = all do
    // The bytes are a row for each rank. A piece is a part of all rows, one after the other, and
    // the place of the row of the rank that publishes it is undefined: that rank has it.
    bool rows = false;
  };

  // Bytes between this rank and one other. Keeps `owner`, of the bytes, until it has ended.
  struct Transfer {
    int peer = 0;
    bool sends = false;
    std::string form;  // "float [2, 3]": equal on both ranks
    std::span<std::byte> bytes;
    std::shared_ptr<const void> owner;
    std::size_t pieces = 0;  // of `bytes`, transferred so far
    bool ended = false;
  };

  // A collective. Null on all ranks if one of them cannot share memory: it is on another machine,
  // in another container, of another user, or its kernel lacks these calls.
  static std::unique_ptr<SharedMemory> make(int rank, int world_size, const AllGather& all_gather);

  ~SharedMemory();  // exchange() of the other ranks fails from then on
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // A collective: publishes `own`, of the same size on all ranks, and calls `consume` for each
  // piece of each rank that publishes, this one included: pieces in order, and per piece the ranks
  // in order. Of rows, an offset is that in each row.
  // `consume` may overwrite that piece of `own`. Waits for all ranks even with zero bytes.
  //
  // Throws DistributedError if a rank has ended or failed, called another collective or with
  // another number of bytes, or did not publish within `timeout`; and what `consume` throws. After
  // that each call throws on all ranks.
  void exchange(const Call& call, std::span<const std::byte> own, const Consume& consume,
                std::chrono::milliseconds timeout);

  // Until its end no collective of another thread of this rank comes between those of this one.
  [[nodiscard]] std::unique_lock<std::recursive_mutex> hold();

  // A collective: memory of `bytes` bytes per rank, rank after rank, that all ranks map. Its
  // contents are undefined. It may outlive this object. Null on all ranks if one of them cannot map
  // it. Throws DistributedError as exchange().
  std::shared_ptr<std::byte> allocate(std::size_t bytes, std::chrono::milliseconds timeout);

  // Begins `transfer`, without waiting. Transfers between two ranks keep their order. Throws as
  // wait().
  std::shared_ptr<Transfer> start(Transfer transfer);

  // Returns when `transfer` has ended. Here and in exchange(), all that were started proceed.
  // Throws DistributedError as exchange(), and if the two ranks' forms differ.
  void wait(const std::shared_ptr<Transfer>& transfer, std::chrono::milliseconds timeout);

  // Whether wait() would not block: `transfer` has ended, or one of the two ranks has failed. Lets
  // it proceed. Throws as start().
  bool has_ended(const Transfer& transfer);

  // Each call of this rank throws from now on, those that wait too, and exchange() of the others.
  void abort();

 private:
  struct Processes;
  class Calls;
  // A memory as other processes find it.
  struct Memory {
    int fd = -1;              // in the process of rank 0
    std::uint64_t nonce = 0;  // its first bytes
  };
  struct Peer {
    std::string host;  // machine, process namespace and user
    int pid = 0;
    Memory memory;  // rank 0
  };

  SharedMemory(int rank, const std::vector<Peer>& peers);
  static std::shared_ptr<std::byte> map(int pid, const Memory& memory, std::size_t bytes);

  int rank_;
  int world_size_;
  int first_pid_;  // of rank 0
  std::shared_ptr<std::byte> memory_;
  std::unique_ptr<Calls> calls_;
};

}  // namespace ladder
