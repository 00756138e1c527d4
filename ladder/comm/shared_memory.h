// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ladder/core/unique_fd.h"

namespace ladder {

// What processes of one machine show each other: memory that they all see. To read a few megabytes
// there takes a fraction of the time of a socket, through which the system copies every byte
// twice and wakes a thread for each message.
//
// Every rank has a slot. It writes a piece of its bytes there, says so, waits until all others
// have said so, and reads all slots, in the order of the ranks. It has two slots and uses them in
// turn: whoever writes a piece knows that all have read the one before the last, for they have
// said that they wrote the last.
//
// The memory has no name in any folder (memfd_create): a rank that is killed leaves nothing
// behind, and a container's small /dev/shm is no limit. Who may open it: processes of the same
// user that see this one in /proc.
//
// Blocks the calling thread; there is no other. Not for use from several threads at once.
class SharedMemory {
 public:
  // A collective of texts: each rank gives its own, all get all of them, in rank order.
  using AllGather = std::function<std::vector<std::string>(const std::string& own)>;

  // Gets the piece of `rank` that begins `offset` bytes from the start of what it shows.
  using Read = std::function<void(int rank, std::size_t offset, std::span<const std::byte> piece)>;

  static constexpr std::size_t kChunkBytes = std::size_t{256}
                                             << 10U;  // bytes a slot: in the L2 cache

  // Each rank reads the slots of all others: simple, and much for many.
  static constexpr int kMostRanks = 8;

  // What the ranks are about to do. It must be the same on all of them.
  struct Call {
    std::string operation;  // "all_reduce", for errors
    std::string form;       // "sum, Float"; may be empty
  };

  // A collective. Null on all ranks where one of them cannot take part: it is on another
  // machine, in another container, of another user, or its system does not know such calls.
  static std::unique_ptr<SharedMemory> make(int rank, int world_size, const AllGather& all_gather);

  // The others hear that this rank does not come any more.
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // A collective: shows `own` to all, equally many bytes on every rank, and calls `read` for each
  // piece of each rank, this one included. Pieces come in order, for each of them the ranks in
  // theirs. `read` may change `own` where the piece lies. No bytes at all are waited for too.
  //
  // Throws DistributedError when a rank has ended or given up, is at another call or at another
  // number of bytes, or is not there within `timeout`; and what `read` throws. After that every
  // call throws, and the other ranks' do.
  void exchange(const Call& call, std::span<const std::byte> own, const Read& read,
                std::chrono::milliseconds timeout);

 private:
  struct Slot;
  struct Part;
  struct Unmap {
    std::size_t bytes;
    void operator()(Part* parts) const;
  };
  struct Peer {
    std::string place;  // machine, processes that it sees, and user
    int pid = 0;
    int memory = -1;         // rank 0: its descriptor of the memory
    std::uint64_t sign = 0;  // rank 0: what the memory begins with
  };
  struct Deadline {
    std::chrono::milliseconds timeout;
    std::chrono::steady_clock::time_point at;
  };

  SharedMemory(int rank, const std::vector<Peer>& peers);
  static Peer peer_of(const std::string& text);
  void show(std::span<const std::byte> piece, const std::string& call);
  void wait_for(int rank, const Deadline& deadline, const Call& call) const;
  void require_same_call(int rank, const std::string& text, const Call& call) const;
  void give_up() noexcept;
  bool has_ended(int rank) const;
  int world_size() const { return static_cast<int>(processes_.size()); }
  [[noreturn]] void fail(const Call& call, const std::string& cause,
                         const std::string& hint = "") const;

  int rank_;
  std::vector<UniqueFd> processes_;  // readable when the process has ended
  std::unique_ptr<Part[], Unmap> parts_;
  std::uint32_t pieces_ = 0;  // that this rank has shown
  bool usable_ = true;
};

}  // namespace ladder
