// SPDX-License-Identifier: Apache-2.0
#include "ladder/comm/shared_memory.h"

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
#include "ladder/core/error.h"

namespace ladder {

struct SharedMemory::Slot {
  std::array<char, 64> call;  // as text: operation, form, bytes
  alignas(64) std::array<std::byte, kChunkBytes> bytes;
};

struct SharedMemory::Part {
  std::uint64_t sign;                             // of this memory; in the part of rank 0
  alignas(64) std::atomic<std::uint32_t> pieces;  // shown; a futex
  std::atomic<bool> gave_up;
  std::array<Slot, 2> slots;
};

namespace {

using std::chrono::steady_clock;
using Counter = std::atomic<std::uint32_t>;

static_assert(Counter::is_always_lock_free, "processes share it");

constexpr const char* kName = "ladder_shared_memory";

// Machine since its start, process numbers and user: who shares all three can share memory.
std::string place() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code error;
  const auto processes = std::filesystem::read_symlink("/proc/self/ns/pid", error).string();
  if (boot.empty() || error) return fmt::format("unknown/{}", ::getpid());
  return fmt::format("{}/{}/{}", boot, processes, ::geteuid());
}

std::uint64_t random_sign() {
  std::random_device source;
  return std::uniform_int_distribution<std::uint64_t>(1)(source);
}

// Newer systems may demand the flag, older ones do not know it.
int create_file() {
  constexpr unsigned kNoExecSeal = 8;
  const int file = ::memfd_create(kName, MFD_CLOEXEC | kNoExecSeal);
  return file >= 0 || errno != EINVAL ? file : ::memfd_create(kName, MFD_CLOEXEC);
}

UniqueFd create_memory(std::size_t bytes, std::uint64_t sign) {
  UniqueFd memory(create_file());
  const bool filled = memory && ::ftruncate(memory.get(), static_cast<off_t>(bytes)) == 0 &&
                      ::pwrite(memory.get(), &sign, sizeof(sign), 0) == sizeof(sign);
  return filled ? std::move(memory) : UniqueFd();
}

// Nothing else may be mapped and written to: process numbers can mean another process.
void require_memory(const std::string& path, int file, std::size_t bytes) {
  struct stat status{};
  std::error_code error;
  const auto target = std::filesystem::read_symlink(path, error).string();
  const bool ours = target.starts_with(std::string("/memfd:") + kName) &&
                    ::fstat(file, &status) == 0 && status.st_size == static_cast<off_t>(bytes);
  if (!ours) throw SystemError::failed("open", path, EBADF);
}

int futex(Counter& word, int operation, std::uint32_t value, const timespec* timeout) {
  return static_cast<int>(::syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0));
}

void release_waiters(Counter& word) { futex(word, FUTEX_WAKE, INT_MAX, nullptr); }

// Until `word` is no longer `value`, or for a moment.
void wait_while(Counter& word, std::uint32_t value) {
  constexpr timespec kFutexTimeout{.tv_sec = 0, .tv_nsec = 100'000'000};
  futex(word, FUTEX_WAIT, value, &kFutexTimeout);
}

// Counters that wrap around: the difference is small.
bool has_reached(std::uint32_t count, std::uint32_t target) {
  return static_cast<std::int32_t>(count - target) >= 0;
}

std::string text_of(const SharedMemory::Call& call, std::size_t bytes) {
  return fmt::format("{} ({}{}{} bytes)", call.operation, call.form, call.form.empty() ? "" : ", ",
                     bytes);
}

}  // namespace

void SharedMemory::Unmap::operator()(Part* parts) const { ::munmap(parts, bytes); }

SharedMemory::Peer SharedMemory::peer_of(const std::string& text) {
  Peer peer;
  std::istringstream(text) >> peer.place >> peer.pid >> peer.memory >> peer.sign;
  return peer;
}

std::unique_ptr<SharedMemory> SharedMemory::make(int rank, int world_size,
                                                 const AllGather& all_gather) {
  if (world_size > kMostRanks) return nullptr;
  const auto bytes = sizeof(Part) * static_cast<std::size_t>(world_size);
  const auto sign = random_sign();
  const auto memory = rank == 0 ? create_memory(bytes, sign) : UniqueFd();
  std::vector<Peer> peers;
  for (const auto& text :
       all_gather(fmt::format("{} {} {} {}", place(), ::getpid(), memory.get(), sign))) {
    peers.push_back(peer_of(text));
  }
  const auto elsewhere = [&](const Peer& peer) { return peer.place != peers.front().place; };
  if (peers.front().memory < 0 || std::any_of(peers.begin(), peers.end(), elsewhere)) {
    return nullptr;
  }
  std::unique_ptr<SharedMemory> made;
  try {
    made.reset(new SharedMemory(rank, peers));
  } catch (const SystemError&) {
    made.reset();  // the others hear of it
  }
  const auto all = all_gather(made ? "yes" : "no");
  if (std::find(all.begin(), all.end(), "no") != all.end()) return nullptr;
  return made;
}

SharedMemory::SharedMemory(int rank, const std::vector<Peer>& peers) : rank_(rank) {
  const auto path = fmt::format("/proc/{}/fd/{}", peers.front().pid, peers.front().memory);
  const UniqueFd memory(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!memory) throw SystemError::failed("open", path, errno);
  const auto bytes = sizeof(Part) * peers.size();
  require_memory(path, memory.get(), bytes);
  void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (mapped == MAP_FAILED) throw SystemError::failed("mmap", path, errno);
  parts_ = {static_cast<Part*>(mapped), Unmap{bytes}};
  if (parts_[0].sign != peers.front().sign) throw SystemError::failed("mmap", path, EBADF);
  for (const auto& peer : peers) {
    processes_.emplace_back(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
    if (!processes_.back()) throw SystemError::failed("pidfd_open", path, errno);
  }
}

SharedMemory::~SharedMemory() { give_up(); }

void SharedMemory::give_up() noexcept {
  auto& part = parts_[static_cast<std::size_t>(rank_)];
  part.gave_up.store(true, std::memory_order_release);
  release_waiters(part.pieces);
}

void SharedMemory::exchange(const Call& call, std::span<const std::byte> own, const Read& read,
                            std::chrono::milliseconds timeout) {
  if (!usable_) fail(call, "an earlier collective failed", "make a new group");
  usable_ = false;
  const Deadline deadline{.timeout = timeout, .at = steady_clock::now() + timeout};
  const auto text = text_of(call, own.size());
  try {
    for (std::size_t offset = 0; offset < std::max<std::size_t>(own.size(), 1);
         offset += kChunkBytes) {
      const auto size = std::min(kChunkBytes, own.size() - offset);
      show(own.subspan(offset, size), text);
      for (int rank = 0; rank < world_size(); ++rank) wait_for(rank, deadline, call);
      for (int rank = 0; rank < world_size(); ++rank) {
        require_same_call(rank, text, call);
        const auto& slot = parts_[static_cast<std::size_t>(rank)].slots[(pieces_ - 1) % 2];
        if (size > 0) read(rank, offset, std::span(slot.bytes).first(size));
      }
    }
  } catch (...) {
    give_up();
    throw;
  }
  usable_ = true;
}

void SharedMemory::show(std::span<const std::byte> piece, const std::string& call) {
  auto& part = parts_[static_cast<std::size_t>(rank_)];
  auto& slot = part.slots[pieces_ % 2];
  std::strncpy(slot.call.data(), call.c_str(), slot.call.size() - 1);
  std::copy(piece.begin(), piece.end(), slot.bytes.begin());
  part.pieces.store(++pieces_, std::memory_order_release);
  release_waiters(part.pieces);
}

void SharedMemory::require_same_call(int rank, const std::string& text, const Call& call) const {
  const auto& slot = parts_[static_cast<std::size_t>(rank)].slots[(pieces_ - 1) % 2];
  const std::string theirs = slot.call.data();
  if (theirs == text.substr(0, slot.call.size() - 1)) return;
  fail(call, fmt::format("rank {} is at {}, this one at {}", rank, theirs, text),
       "all ranks must call the same collectives, in the same order, with tensors of one shape");
}

void SharedMemory::wait_for(int rank, const Deadline& deadline, const Call& call) const {
  constexpr int kSpins = 200;  // some 0.1 ms: to be woken takes as long
  auto& part = parts_[static_cast<std::size_t>(rank)];
  for (int glance = 0;; ++glance) {
    // First whether it can still come, then whether it has: it may have gone in between.
    const bool gave_up = part.gave_up.load(std::memory_order_acquire);
    const bool ended = glance > kSpins && has_ended(rank);
    const bool late = glance > kSpins && steady_clock::now() >= deadline.at;
    const auto count = part.pieces.load(std::memory_order_acquire);
    if (has_reached(count, pieces_)) return;
    if (gave_up) fail(call, fmt::format("rank {} has given up", rank));
    if (ended) fail(call, fmt::format("rank {} has ended", rank));
    if (late) fail(call, timed_out(deadline.timeout, fmt::format("rank {}", rank)));
    if (glance < kSpins) {
      std::this_thread::yield();
    } else {
      wait_while(part.pieces, count);
    }
  }
}

bool SharedMemory::has_ended(int rank) const {
  pollfd process{
      .fd = processes_[static_cast<std::size_t>(rank)].get(), .events = POLLIN, .revents = 0};
  return ::poll(&process, 1, 0) > 0;
}

void SharedMemory::fail(const Call& call, const std::string& cause, const std::string& hint) const {
  throw collective_failed(call.operation, rank_, world_size(), cause, hint);
}

}  // namespace ladder
