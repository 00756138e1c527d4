// SPDX-License-Identifier: Apache-2.0
#include "ladder/shm/shared_memory.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <system_error>
#include <thread>

#include "ladder/comm/errors.h"
#include "ladder/comm/sent_bytes.h"
#include "ladder/core/error.h"

namespace ladder {

struct SharedMemory::Slot {
  std::array<char, 64> call;  // as text: operation, form, bytes
  alignas(64) std::array<std::byte, kChunkBytes> bytes;
};

struct SharedMemory::Channel {
  alignas(64) std::atomic<std::uint32_t> written;  // pieces; a futex
  alignas(64) std::atomic<std::uint32_t> read;     // pieces; a futex
  std::array<Slot, 8> slots;                       // so that a sender can go on with its work
};

// Pages of the memory that no rank touches take no room.
struct SharedMemory::Segment {
  std::uint64_t nonce;                            // of this memory; in the segment of rank 0
  alignas(64) std::atomic<std::uint32_t> pieces;  // published; a futex
  std::atomic<bool> failed;
  std::array<Slot, 2> slots;
  std::array<Channel, kMostRanks> to;
};

namespace {

using std::chrono::steady_clock;
using Counter = std::atomic<std::uint32_t>;

static_assert(Counter::is_always_lock_free, "processes share it");

UniqueFd create_memory(std::size_t bytes, std::uint64_t nonce) {
  constexpr const char* kName = "ladder_shared_memory";
  constexpr unsigned kNoExecSeal = 8;  // newer kernels may demand it, older ones refuse it
  UniqueFd memory(::memfd_create(kName, MFD_CLOEXEC | kNoExecSeal));
  if (!memory && errno == EINVAL) memory.reset(::memfd_create(kName, MFD_CLOEXEC));
  const bool filled = memory && ::ftruncate(memory.get(), static_cast<off_t>(bytes)) == 0 &&
                      ::pwrite(memory.get(), &nonce, sizeof(nonce), 0) == sizeof(nonce);
  return filled ? std::move(memory) : UniqueFd();
}

std::uint64_t random_nonce() {
  std::random_device random;
  return std::uniform_int_distribution<std::uint64_t>(1)(random);
}

int futex(Counter& word, int operation, std::uint32_t value, const timespec* timeout) {
  return static_cast<int>(::syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0));
}

// Boot of the machine, process namespace and user: processes that agree in all three see each
// other.
std::string host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code error;
  const auto processes = std::filesystem::read_symlink("/proc/self/ns/pid", error).string();
  if (boot.empty() || error) return fmt::format("unknown/{}", ::getpid());
  return fmt::format("{}/{}/{}", boot, processes, ::geteuid());
}

void release_waiters(Counter& word) { futex(word, FUTEX_WAKE, INT_MAX, nullptr); }

void count(Counter& word) {
  word.store(word + 1, std::memory_order_release);
  release_waiters(word);
}

}  // namespace

std::unique_ptr<SharedMemory> SharedMemory::make(int rank, int world_size,
                                                 const AllGather& all_gather) {
  if (world_size > kMostRanks) return nullptr;
  const auto bytes = sizeof(Segment) * static_cast<std::size_t>(world_size);
  const auto nonce = random_nonce();
  const auto memory = rank == 0 ? create_memory(bytes, nonce) : UniqueFd();
  std::vector<Peer> peers;
  for (const auto& text :
       all_gather(fmt::format("{} {} {} {}", host_identity(), ::getpid(), memory.get(), nonce))) {
    auto& peer = peers.emplace_back();
    std::istringstream(text) >> peer.host >> peer.pid >> peer.memory.fd >> peer.memory.nonce;
  }
  const auto elsewhere = [&](const Peer& peer) { return peer.host != peers.front().host; };
  if (peers.front().memory.fd < 0 || std::ranges::any_of(peers, elsewhere)) return nullptr;
  std::unique_ptr<SharedMemory> made;
  try {
    made.reset(new SharedMemory(rank, peers));
  } catch (const SystemError&) {
    made.reset();  // all ranks learn it next
  }
  const auto all = all_gather(made ? "yes" : "no");
  if (std::find(all.begin(), all.end(), "no") != all.end()) return nullptr;
  return made;
}

std::shared_ptr<std::byte> SharedMemory::map(int pid, const Memory& memory, std::size_t bytes) {
  const auto path = fmt::format("/proc/{}/fd/{}", pid, memory.fd);
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat status{};
  if (!file || ::fstat(file.get(), &status) != 0) throw SystemError::failed("open", path, errno);
  // Should the process number be another process by now, size and nonce differ.
  if (status.st_size != static_cast<off_t>(bytes)) throw SystemError::failed("open", path, EBADF);
  void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) throw SystemError::failed("mmap", path, errno);
  std::shared_ptr<std::byte> all(static_cast<std::byte*>(mapped),
                                 [bytes](std::byte* begin) { ::munmap(begin, bytes); });
  if (std::memcmp(mapped, &memory.nonce, sizeof(memory.nonce)) != 0) {
    throw SystemError::failed("mmap", path, EBADF);
  }
  return all;
}

SharedMemory::SharedMemory(int rank, const std::vector<Peer>& peers)
    : rank_(rank),
      first_pid_(peers.front().pid),
      memory_(map(first_pid_, peers.front().memory, sizeof(Segment) * peers.size())),
      segments_(reinterpret_cast<Segment*>(memory_.get())) {
  for (const auto& peer : peers) {
    processes_.emplace_back(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
    if (!processes_.back()) {
      throw SystemError::failed("pidfd_open", fmt::format("process {}", peer.pid), errno);
    }
  }
}

SharedMemory::~SharedMemory() { mark_failed(); }

void SharedMemory::mark_failed() noexcept {
  auto& segment = segments_[static_cast<std::size_t>(rank_)];
  segment.failed.store(true, std::memory_order_release);
  release_waiters(segment.pieces);
}

void SharedMemory::exchange(const Call& call, std::span<const std::byte> own,
                            const Consume& consume, std::chrono::milliseconds timeout) {
  if (!usable_) fail(call, "an earlier collective failed", "make a new group");
  usable_ = false;
  Deadline deadline(timeout);
  const auto publishes = [&](int rank) { return call.from < 0 || rank == call.from; };
  const auto text =
      fmt::format("{} ({}{}{} bytes{})", call.operation, call.form, call.form.empty() ? "" : ", ",
                  own.size(), call.from < 0 ? "" : fmt::format(" of rank {}", call.from));
  try {
    for (std::size_t offset = 0; offset < std::max<std::size_t>(own.size(), 1);
         offset += kChunkBytes) {
      const auto size = std::min(kChunkBytes, own.size() - offset);
      const auto piece = own.subspan(offset, publishes(rank_) ? size : 0);
      publish(piece, text);
      for (int rank = 0; rank < world_size(); ++rank) {
        auto& counter = segments_[static_cast<std::size_t>(rank)].pieces;
        wait_for(rank, call, deadline, counter, [&] {
          return static_cast<std::int32_t>(counter.load(std::memory_order_acquire) - pieces_) >= 0;
        });
      }
      for (int rank = 0; rank < world_size(); ++rank) {
        require_same_call(rank, text, call);
        const auto& slot = segments_[static_cast<std::size_t>(rank)].slots[(pieces_ - 1) % 2];
        if (size > 0 && publishes(rank)) consume(rank, offset, std::span(slot.bytes).first(size));
      }
    }
  } catch (...) {
    mark_failed();
    throw;
  }
  usable_ = true;
}

std::shared_ptr<std::byte> SharedMemory::allocate(std::size_t bytes,
                                                  std::chrono::milliseconds timeout) {
  bytes *= processes_.size();
  Memory memory{.nonce = random_nonce()};
  const auto file = rank_ == 0 ? create_memory(bytes, memory.nonce) : UniqueFd();
  memory.fd = file.get();
  const Call call{.operation = "share memory", .form = fmt::format("of {}", bytes), .from = 0};
  const auto own = std::as_writable_bytes(std::span(&memory, 1));
  exchange(
      call, own, [&](auto, auto, auto theirs) { std::ranges::copy(theirs, own.begin()); }, timeout);
  std::shared_ptr<std::byte> mapped;
  try {
    if (memory.fd >= 0) mapped = map(first_pid_, memory, bytes);
  } catch (const SystemError&) {
    mapped.reset();  // all ranks learn it next
  }
  const std::array<std::byte, 1> is_mapped = {std::byte(mapped != nullptr)};
  const auto consume = [&](auto, auto, auto theirs) {
    if (theirs[0] == std::byte{0}) mapped.reset();
  };
  exchange({.operation = "share memory"}, is_mapped, consume, timeout);
  return mapped;
}

void SharedMemory::publish(std::span<const std::byte> piece, const std::string& call) {
  auto& segment = segments_[static_cast<std::size_t>(rank_)];
  auto& slot = segment.slots[pieces_ % 2];
  std::strncpy(slot.call.data(), call.c_str(), slot.call.size() - 1);
  std::copy(piece.begin(), piece.end(), slot.bytes.begin());
  count(segment.pieces);
  ++pieces_;
  count_sent_bytes(static_cast<std::int64_t>(piece.size()));
}

void SharedMemory::require_same_call(int rank, const std::string& text, const Call& call) const {
  const auto& slot = segments_[static_cast<std::size_t>(rank)].slots[(pieces_ - 1) % 2];
  const std::string theirs = slot.call.data();
  if (theirs == text.substr(0, slot.call.size() - 1)) return;
  fail(call, fmt::format("rank {} called {}, this rank called {}", rank, theirs, text),
       "all ranks must call the same collectives, in the same order, with tensors of one shape");
}

// `counter` of another rank changes before `ready` does; it may wrap around.
template <typename Ready>
void SharedMemory::wait_for(int rank, const Call& call, Deadline& deadline, Counter& counter,
                            const Ready& ready) {
  // A rank that sleeps needs 0.05 to 0.1 ms to wake up, in each of several waits per step. One that
  // yields leaves its CPU to any other that can run.
  constexpr auto kSpinFor = std::chrono::milliseconds(2);
  constexpr timespec kLongestWait{.tv_sec = 0, .tv_nsec = 100'000'000};
  constexpr timespec kNextTransfer{.tv_sec = 0, .tv_nsec = 100'000};
  const auto alone = [&] {
    return std::ranges::all_of(
        transfers_, [&](const auto& transfer) { return &counter_of_peer(*transfer) == &counter; });
  };
  const auto& segment = segments_[static_cast<std::size_t>(rank)];
  pollfd process{
      .fd = processes_[static_cast<std::size_t>(rank)].get(), .events = POLLIN, .revents = 0};
  const auto spin_until = steady_clock::now() + kSpinFor;
  while (true) {
    // Call ready() last: the rank may have published and ended in between.
    const bool failed = segment.failed.load(std::memory_order_acquire);
    const auto now = steady_clock::now();
    const bool spins = now < spin_until;
    const bool ended = !spins && ::poll(&process, 1, 0) > 0;
    const bool late = deadline.passed(now);
    const auto before = counter.load(std::memory_order_acquire);
    proceed();
    if (ready()) return;
    if (failed) fail(call, fmt::format("rank {} has failed", rank));
    if (ended) fail(call, fmt::format("rank {} has ended", rank));
    if (late) fail(call, timed_out(deadline.timeout(), fmt::format("rank {}", rank)));
    if (spins) {
      std::this_thread::yield();
    } else {
      futex(counter, FUTEX_WAIT, before, alone() ? &kLongestWait : &kNextTransfer);
    }
  }
}

std::shared_ptr<SharedMemory::Transfer> SharedMemory::start(Transfer transfer) {
  auto started = transfers_.emplace_back(std::make_shared<Transfer>(std::move(transfer)));
  try {
    if (usable_) proceed();
  } catch (...) {
    usable_ = false;
    mark_failed();
    throw;
  }
  return started;
}

void SharedMemory::wait(const std::shared_ptr<Transfer>& transfer,
                        std::chrono::milliseconds timeout) {
  const Call call{.operation = transfer->sends ? "send" : "recv"};
  if (!usable_) fail(call, "an earlier collective failed", "make a new group");
  try {
    Deadline deadline(timeout);
    wait_for(transfer->peer, call, deadline, counter_of_peer(*transfer),
             [&] { return transfer->ended(); });
  } catch (...) {
    usable_ = false;
    mark_failed();
    throw;
  }
}

SharedMemory::Channel& SharedMemory::channel_of(const Transfer& transfer) const {
  const int from = transfer.sends ? rank_ : transfer.peer;
  const int to = transfer.sends ? transfer.peer : rank_;
  return segments_[static_cast<std::size_t>(from)].to[static_cast<std::size_t>(to)];
}

Counter& SharedMemory::counter_of_peer(const Transfer& transfer) const {
  auto& channel = channel_of(transfer);
  return transfer.sends ? channel.read : channel.written;
}

void SharedMemory::proceed() {
  std::vector<const Channel*> busy;  // an earlier transfer has not ended
  for (auto transfer = transfers_.begin(); transfer != transfers_.end();) {
    const auto* const channel = &channel_of(**transfer);
    const bool free = std::ranges::find(busy, channel) == busy.end();
    if (free && proceed(**transfer)) {
      transfer = transfers_.erase(transfer);
    } else {
      busy.push_back(channel);
      ++transfer;
    }
  }
}

// Returns whether `transfer` has ended.
bool SharedMemory::proceed(Transfer& transfer) {
  auto& [written, read, slots] = channel_of(transfer);
  auto& counter = transfer.sends ? written : read;
  while (!transfer.ended()) {
    const auto full =
        written.load(std::memory_order_acquire) - read.load(std::memory_order_acquire);
    if (full == (transfer.sends ? slots.size() : 0)) return false;
    auto& slot = slots[counter % slots.size()];
    const auto begin = transfer.pieces * kChunkBytes;
    const auto own =
        transfer.bytes.subspan(begin).first(std::min(kChunkBytes, transfer.bytes.size() - begin));
    if (transfer.sends) {
      std::strncpy(slot.call.data(), transfer.form.c_str(), slot.call.size() - 1);
      std::copy(own.begin(), own.end(), slot.bytes.begin());
      count_sent_bytes(static_cast<std::int64_t>(own.size()));
    } else {
      if (transfer.form.substr(0, slot.call.size() - 1) != slot.call.data()) {
        throw another_tensor_sent(rank_, world_size(), transfer.peer, slot.call.data(),
                                  transfer.form);
      }
      std::copy_n(slot.bytes.begin(), own.size(), own.begin());
    }
    ++transfer.pieces;
    count(counter);
  }
  return true;
}

void SharedMemory::fail(const Call& call, const std::string& cause, const std::string& hint) const {
  throw collective_failed(call.operation, rank_, world_size(), cause, hint);
}

}  // namespace ladder
