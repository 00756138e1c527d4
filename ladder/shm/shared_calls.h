// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ladder/comm/errors.h"
#include "ladder/comm/sent_bytes.h"
#include "ladder/shm/protocol.h"
#include "ladder/shm/shared_memory.h"

namespace ladder {

// The calls of SharedMemory, which has their contracts, over the counters and slots of Protocol.
// `System` is that of Protocol, and has:
//   Slot               call, a text of chars, and bytes, an array
//   kAlignment         of pieces of rows, in bytes
//   Mutex, Deadline    std::recursive_mutex, ladder::Deadline
//   Wait               made of (system, rank, deadline): look(), spins() and yield() as Protocol
//                      calls them, ended() and late() as look() found them, and sleep(counter,
//                      before, alone): if not `alone`, other counters matter too
//
// One lock gives the collectives of several threads an order; another guards the transfers, and no
// thread waits for a rank while it has that. So transfers begin and proceed during a collective.
template <typename System>
class SharedCalls {
 public:
  using Call = SharedMemory::Call;
  using Transfer = SharedMemory::Transfer;
  using Transfers = std::list<std::shared_ptr<Transfer>>;
  using Segment = typename Protocol<System>::Segment;
  using Counter = typename System::Counter;
  using Slot = typename System::Slot;
  using Deadline = typename System::Deadline;
  using Milliseconds = std::chrono::milliseconds;

  SharedCalls(System system, Segment* segments, int rank, int world_size)
      : system_(std::move(system)),
        rank_(rank),
        world_size_(world_size),
        protocol_(segments, rank) {}

  std::unique_lock<typename System::Mutex> hold() { return std::unique_lock(collectives_); }

  void exchange(const Call& call, std::span<const std::byte> own,
                const SharedMemory::Consume& consume, Milliseconds timeout) {
    const auto in_order = hold();
    const auto publishes = [&](int rank) { return call.from < 0 || rank == call.from; };
    const auto text = text_of(call, own.size());
    const auto rows = call.rows ? static_cast<std::size_t>(world_size_) : 1;
    const auto row = own.size() / rows;
    const auto most = kChunkBytes / rows / System::kAlignment * System::kAlignment;
    run(call, timeout, [&](Deadline& deadline) {
      for (std::size_t offset = 0; offset < std::max<std::size_t>(row, 1); offset += most) {
        const auto size = std::min(most, row - offset);
        publish(text, publishes(rank_) ? own : own.first(0), rows, offset, size);
        wait_for_all(call, deadline);
        for (int rank = 0; rank < world_size_; ++rank) {
          const auto& slot = protocol_.published(rank);
          require_same_call(call, rank, slot, text);
          if (size == 0 || !publishes(rank)) continue;
          consume(rank, offset, std::span(slot.bytes).first(rows * size));
        }
      }
    });
  }

  std::shared_ptr<Transfer> start(Transfer transfer) {
    auto started = std::make_shared<Transfer>(std::move(transfer));
    const std::lock_guard lock(transfers_mutex_);
    transfers_.push_back(started);
    proceed_unless_failed();
    return started;
  }

  void wait(const std::shared_ptr<Transfer>& transfer, Milliseconds timeout) {
    const Call call{.operation = transfer->sends ? "send" : "recv", .form = ""};
    run(call, timeout, [&](Deadline& deadline) {
      wait_for(transfer->peer, counter_of_peer(*transfer), call, deadline,
               [&] { return transfer->ended; });
    });
  }

  bool has_ended(const Transfer& transfer) {
    const std::lock_guard lock(transfers_mutex_);
    const bool failed = protocol_.has_failed(rank_) || protocol_.has_failed(transfer.peer);
    proceed_unless_failed();
    return transfer.ended || failed;
  }

  void abort() { protocol_.fail(); }

 private:
  static constexpr std::size_t kChunkBytes = sizeof(Slot::bytes);
  static constexpr std::size_t kCallBytes = sizeof(Slot::call) - 1;
  static_assert(kChunkBytes >= System::kMaxRanks * System::kAlignment);  // a part of each row

  // A wait that throws as the contracts say.
  class Wait : public System::Wait {
   public:
    Wait(SharedCalls& calls, int rank, const Call& call, Deadline& deadline)
        : System::Wait(calls.system_, rank, deadline),
          calls_(calls),
          rank_(rank),
          call_(call),
          deadline_(deadline) {}
    void look() {
      aborted_ = calls_.protocol_.has_failed(calls_.rank_);
      System::Wait::look();
    }
    void fail_if_lost(bool failed) const {
      if (aborted_) calls_.fail_again(call_);
      if (failed) calls_.fail(call_, fmt::format("rank {} has failed", rank_));
      if (this->ended()) calls_.fail(call_, fmt::format("rank {} has ended", rank_));
      if (!this->late()) return;
      calls_.fail(call_, timed_out(deadline_.timeout(), fmt::format("rank {}", rank_)));
    }
    void sleep(Counter& counter, std::uint32_t before) {
      System::Wait::sleep(counter, before, calls_.transfers_wait_only_for(counter));
    }

   private:
    SharedCalls& calls_;
    int rank_;
    const Call& call_;
    Deadline& deadline_;
    bool aborted_ = false;  // by another thread of this rank
  };

  // Runs `body`. If it throws, all ranks fail from then on.
  template <typename Body>
  void run(const Call& call, Milliseconds timeout, const Body& body) {
    if (protocol_.has_failed(rank_)) fail_again(call);
    try {
      Deadline deadline(timeout);
      body(deadline);
    } catch (...) {
      protocol_.fail();
      throw;
    }
  }

  // A piece: `size` bytes of each row of `own`, from `offset` on; none if it is empty.
  void publish(const std::string& text, std::span<const std::byte> own, std::size_t rows,
               std::size_t offset, std::size_t size) {
    std::size_t sent = 0;
    protocol_.publish([&](Slot& slot) {
      fill(slot, text, {});
      for (std::size_t row = 0; row < rows && !own.empty(); ++row) {
        if (rows > 1 && row == static_cast<std::size_t>(rank_)) continue;
        std::memcpy(slot.bytes.data() + row * size, own.data() + row * (own.size() / rows) + offset,
                    size);
        sent += size;
      }
    });
    count_sent_bytes(static_cast<std::int64_t>(sent));
  }

  static void fill(Slot& slot, const std::string& text, std::span<const std::byte> bytes) {
    std::strncpy(slot.call.data(), text.c_str(), kCallBytes);
    // std::ranges::copy() of bytes is a loop of bytes here, ten times as slow.
    if (!bytes.empty()) std::memcpy(slot.bytes.data(), bytes.data(), bytes.size());
  }

  void wait_for_all(const Call& call, Deadline& deadline) {
    for (int rank = 0; rank < world_size_; ++rank) {
      if (rank == rank_) continue;
      wait_for(rank, protocol_.pieces_of(rank), call, deadline,
               [&] { return protocol_.has_published(rank); });
    }
  }

  // ready() is called with the lock of the transfers.
  template <typename Ready>
  void wait_for(int rank, Counter& counter, const Call& call, Deadline& deadline,
                const Ready& ready) {
    Wait wait(*this, rank, call, deadline);
    protocol_.wait_for(rank, counter, wait, [&] {
      const std::lock_guard lock(transfers_mutex_);
      proceed();
      return ready();
    });
  }

  static std::string text_of(const Call& call, std::size_t bytes) {
    return fmt::format("{} ({}{}{} bytes{})", call.operation, call.form,
                       call.form.empty() ? "" : ", ", bytes,
                       call.from < 0 ? "" : fmt::format(" of rank {}", call.from));
  }

  void require_same_call(const Call& call, int rank, const Slot& slot,
                         const std::string& text) const {
    const std::string_view theirs = slot.call.data();
    if (theirs == std::string_view(text).substr(0, kCallBytes)) return;
    fail(call, fmt::format("rank {} called {}, this rank called {}", rank, theirs, text),
         "all ranks must call the same collectives, in the same order, with tensors of one shape");
  }

  Counter& counter_of_peer(const Transfer& transfer) const {
    return transfer.sends ? protocol_.read_by(transfer.peer) : protocol_.written_by(transfer.peer);
  }

  bool transfers_wait_only_for(const Counter& counter) {
    const std::lock_guard lock(transfers_mutex_);
    return std::ranges::all_of(
        transfers_, [&](const auto& transfer) { return &counter_of_peer(*transfer) == &counter; });
  }

  void proceed_unless_failed() {
    if (protocol_.has_failed(rank_)) return;
    try {
      proceed();
    } catch (...) {
      protocol_.fail();
      throw;
    }
  }

  // Moves pieces of all transfers for which a slot is free or filled, those to one rank in order.
  void proceed() {
    std::vector<const Counter*> busy;  // an earlier transfer has not ended
    for (auto transfer = transfers_.begin(); transfer != transfers_.end();) {
      const auto* const counter = &counter_of_peer(**transfer);
      const bool free = std::ranges::find(busy, counter) == busy.end();
      if (free && proceed(**transfer)) {
        transfer = transfers_.erase(transfer);
      } else {
        busy.push_back(counter);
        ++transfer;
      }
    }
  }

  // Returns whether `transfer` has ended.
  bool proceed(Transfer& transfer) {
    while (!transfer.ended) {
      const auto begin = transfer.pieces * kChunkBytes;
      const auto own =
          transfer.bytes.subspan(begin).first(std::min(kChunkBytes, transfer.bytes.size() - begin));
      if (!(transfer.sends ? send(transfer, own) : receive(transfer, own))) return false;
      ++transfer.pieces;
      transfer.ended = begin + own.size() == transfer.bytes.size();
    }
    return true;
  }

  bool send(const Transfer& transfer, std::span<const std::byte> own) {
    const bool sent =
        protocol_.send(transfer.peer, [&](Slot& slot) { fill(slot, transfer.form, own); });
    if (sent) count_sent_bytes(static_cast<std::int64_t>(own.size()));
    return sent;
  }

  bool receive(const Transfer& transfer, std::span<std::byte> own) {
    return protocol_.receive(transfer.peer, [&](const Slot& slot) {
      if (transfer.form.substr(0, kCallBytes) != slot.call.data()) {
        throw another_tensor_sent(rank_, world_size_, transfer.peer, slot.call.data(),
                                  transfer.form);
      }
      if (!own.empty()) std::memcpy(own.data(), slot.bytes.data(), own.size());
    });
  }

  [[noreturn]] void fail(const Call& call, const std::string& cause,
                         const std::string& hint = "") const {
    throw collective_failed(call.operation, rank_, world_size_, cause, hint);
  }

  [[noreturn]] void fail_again(const Call& call) const {
    fail(call, "an earlier collective failed, or the group was aborted", "make a new group");
  }

  System system_;
  int rank_;
  int world_size_;
  typename System::Mutex collectives_;      // one at a time
  typename System::Mutex transfers_mutex_;  // of transfers_ and their fields
  Protocol<System> protocol_;               // publishes with collectives_, the rest as transfers_
  Transfers transfers_;                     // in order per rank and direction
};

}  // namespace ladder
