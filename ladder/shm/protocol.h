// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ladder {

// The order of what ranks do in memory that all of them map: slots, counters and waits, without
// system calls. SharedMemory runs it on std::atomic and futexes, tests/shm/protocol_model.cpp in a
// checker of the C++ memory model, tests/shm/shared_calls_test.cpp under a scheduler of its own.
//
// A collective: each rank has two slots, which it uses in turn. It writes a piece into a slot,
// counts it as published, waits until all ranks have published theirs, and reads the slots of all.
// The slot before the last is free: ranks that published the last piece have read it.
//
// A transfer: each ordered pair of ranks has a channel, a ring of slots. The sender counts pieces
// that it wrote, the receiver those that it read. The sender waits while the ring is full.
//
// Only one rank writes to each counter and flag, so no operation reads and writes in one.

// What the protocol needs of the memory model. The model takes one away at a time, and the checker
// finds an execution that fails.
struct ProtocolRules {
  // A rank that sees the count of a piece sees its bytes, and that the earlier piece was read.
  static constexpr auto kPublish = std::memory_order_release;
  static constexpr auto kSeePublished = std::memory_order_acquire;

  // A receiver that sees the count of a piece sees its bytes.
  static constexpr auto kWrite = std::memory_order_release;
  static constexpr auto kSeeWritten = std::memory_order_acquire;

  // A sender that sees room in the ring writes after the receiver has read.
  static constexpr auto kRead = std::memory_order_release;
  static constexpr auto kSeeRead = std::memory_order_acquire;

  // A rank that sees another fail sees all that it published before: that is complete.
  static constexpr auto kFail = std::memory_order_release;
  static constexpr auto kSeeFailed = std::memory_order_acquire;

  static constexpr std::uint32_t kSlots = 2;      // of a rank, in turn
  static constexpr std::uint32_t kRing = 8;       // slots of a channel
  static constexpr std::uint32_t kAhead = kRing;  // most pieces that are written and not yet read
};

// `System` has:
//   Rules             ProtocolRules
//   Counter, Flag     std::atomic<std::uint32_t>, std::atomic<bool>
//   Slot              what a piece fills
//   kMaxRanks
//   own(counter)      the value of a counter that this rank alone writes
//   wake(counter)     wakes the ranks that sleep until `counter` changes
// A `Wait`, of one wait for a rank, has:
//   look()            before the counters are read; keeps whether the process ended or time is up
//   fail_if_lost(failed)      throws if look() found so, or if the rank `failed`
//   spins()           whether to yield() rather than to sleep
//   yield()
//   sleep(counter, before)    until `counter` is no longer `before`, or for a while
template <typename System>
class Protocol {
 public:
  using Rules = typename System::Rules;
  using Counter = typename System::Counter;  // of pieces; wraps around
  using Slot = typename System::Slot;

  struct Channel {
    alignas(64) Counter written;
    alignas(64) Counter read;
    std::array<Slot, Rules::kRing> slots;
  };

  // Of each rank. Zeros before the first use. Pages that no rank touches take no room.
  struct Segment {
    alignas(64) Counter pieces;  // published
    typename System::Flag failed;
    std::array<Slot, ProtocolRules::kSlots> slots;
    std::array<Channel, System::kMaxRanks> to;
  };

  // `published`: pieces of each rank so far.
  Protocol(Segment* segments, int rank, std::uint32_t published = 0)
      : segments_(segments), rank_(rank), pieces_(published) {}

  // Calls write(slot) and publishes it. Before the next one all ranks must have published this one.
  template <typename Write>
  void publish(const Write& write) {
    auto& own = segment(rank_);
    write(own.slots[pieces_ % Rules::kSlots]);
    ++pieces_;
    count(own.pieces, pieces_, Rules::kPublish);
  }

  // Whether `rank` has published as many pieces as this rank.
  bool has_published(int rank) const {
    const auto theirs = segment(rank).pieces.load(Rules::kSeePublished);
    return static_cast<std::int32_t>(theirs - pieces_) >= 0;
  }

  // The last piece of `rank`, after has_published(rank).
  Slot& published(int rank) const { return segment(rank).slots[(pieces_ - 1) % Rules::kSlots]; }

  // Calls write(slot) and counts it, unless the ring is full. Returns whether it did.
  template <typename Write>
  bool send(int to, const Write& write) {
    auto& channel = segment(rank_).to[static_cast<std::size_t>(to)];
    const auto written = System::own(channel.written);
    if (written - channel.read.load(Rules::kSeeRead) == Rules::kAhead) return false;
    write(channel.slots[written % Rules::kRing]);
    count(channel.written, written + 1, Rules::kWrite);
    return true;
  }

  // Calls read(slot) and counts it, unless the ring is empty. Returns whether it did.
  template <typename Read>
  bool receive(int from, const Read& read) {
    auto& channel = segment(from).to[static_cast<std::size_t>(rank_)];
    const auto already = System::own(channel.read);
    if (channel.written.load(Rules::kSeeWritten) == already) return false;
    read(channel.slots[already % Rules::kRing]);
    count(channel.read, already + 1, Rules::kRead);
    return true;
  }

  // Counters of another rank, for wait_for().
  Counter& pieces_of(int rank) const { return segment(rank).pieces; }
  Counter& read_by(int to) const { return segment(rank_).to[static_cast<std::size_t>(to)].read; }
  Counter& written_by(int from) const {
    return segment(from).to[static_cast<std::size_t>(rank_)].written;
  }

  // Returns when ready() does. `counter`, of `rank`, changes before that.
  template <typename Wait, typename Ready>
  void wait_for(int rank, Counter& counter, Wait& wait, const Ready& ready) {
    while (true) {
      // ready() comes last: the rank may have published its piece and ended in between.
      const bool failed = has_failed(rank);
      wait.look();
      if (ready()) return;
      wait.fail_if_lost(failed);
      if (wait.spins()) {
        wait.yield();
        continue;
      }
      const auto before = counter.load(std::memory_order_relaxed);
      if (ready()) return;
      wait.sleep(counter, before);
    }
  }

  // All waits for this rank fail from now on, unless it has published what they need.
  void fail() {
    auto& own = segment(rank_);
    own.failed.store(true, Rules::kFail);
    System::wake(own.pieces);
  }

  bool has_failed(int rank) const { return segment(rank).failed.load(Rules::kSeeFailed); }

 private:
  Segment& segment(int rank) const { return segments_[static_cast<std::size_t>(rank)]; }

  static void count(Counter& counter, std::uint32_t pieces, std::memory_order order) {
    counter.store(pieces, order);
    System::wake(counter);
  }

  Segment* segments_;
  int rank_;
  std::uint32_t pieces_;  // published by this rank
};

}  // namespace ladder
