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
#include <mutex>
#include <random>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "ladder/core/clock.h"
#include "ladder/core/error.h"
#include "ladder/core/unique_fd.h"
#include "ladder/shm/protocol.h"
#include "ladder/shm/shared_calls.h"

namespace ladder {
namespace {

using std::chrono::steady_clock;
using Word = std::atomic<std::uint32_t>;

static_assert(Word::is_always_lock_free, "processes share it");

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

void futex(Word& word, int operation, std::uint32_t value, const timespec* timeout) {
  ::syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0);
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

}  // namespace

// What SharedCalls and Protocol run on.
struct SharedMemory::Processes {
  using Rules = ProtocolRules;
  // A futex, and the number of ranks that sleep on it, the only word that several ranks write: a
  // system call takes longer than a small message, so wake() makes none without a sleeper. A rank
  // that is killed in its sleep stays counted, which costs only these calls.
  struct Counter {
    std::atomic<std::uint32_t> value;
    std::atomic<std::uint32_t> sleepers;
    std::uint32_t load(std::memory_order order) const { return value.load(order); }
    void store(std::uint32_t pieces, std::memory_order order) { value.store(pieces, order); }
  };
  using Flag = std::atomic<bool>;
  using Mutex = std::recursive_mutex;
  using Deadline = ladder::Deadline;
  static constexpr std::size_t kMaxRanks = SharedMemory::kMaxRanks;
  static constexpr std::size_t kAlignment = 16;  // the largest element

  struct Slot {
    std::array<char, 64> call;  // as text: operation, form, bytes
    alignas(64) std::array<std::byte, SharedMemory::kChunkBytes> bytes;
  };

  static std::uint32_t own(const Counter& counter) {
    return counter.load(std::memory_order_relaxed);
  }
  // Either this sees the sleeper, or FUTEX_WAIT the new value: both sides have a fence in between.
  static void wake(Counter& counter) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (counter.sleepers.load(std::memory_order_relaxed) == 0) return;
    futex(counter.value, FUTEX_WAKE, INT_MAX, nullptr);
  }

  // A rank that sleeps needs 0.05 to 0.1 ms to wake up, in each of several waits per step. One that
  // yields leaves its CPU to any other that can run, for longer than a small message takes.
  class Wait {
   public:
    Wait(const Processes& processes, int rank, Deadline& deadline)
        : process_{.fd = processes.handles[static_cast<std::size_t>(rank)].get(),
                   .events = POLLIN,
                   .revents = 0},
          deadline_(deadline) {}

    void look() {
      if (looks_ < kLooks) return;  // reading the clock delays a small message
      const auto now = steady_clock::now();
      if (looks_ == kLooks) spin_until_ = now + kSpinFor;
      spins_ = now < spin_until_;
      ended_ = !spins_ && ::poll(&process_, 1, 0) > 0;
      late_ = deadline_.passed(now);
    }
    bool ended() const { return ended_; }
    bool late() const { return late_; }
    bool spins() const { return spins_; }
    void yield() {
      if (++looks_ > kLooks) std::this_thread::yield();
    }
    void sleep(Counter& counter, std::uint32_t before, bool alone) {
      constexpr timespec kLongest{.tv_sec = 0, .tv_nsec = 100'000'000};
      constexpr timespec kNextTransfer{.tv_sec = 0, .tv_nsec = 100'000};
      counter.sleepers.fetch_add(1, std::memory_order_seq_cst);
      futex(counter.value, FUTEX_WAIT, before, alone ? &kLongest : &kNextTransfer);
      counter.sleepers.fetch_sub(1, std::memory_order_relaxed);
    }

   private:
    static constexpr int kLooks = 100;
    static constexpr std::chrono::milliseconds kSpinFor{2};

    pollfd process_;
    Deadline& deadline_;
    steady_clock::time_point spin_until_;
    int looks_ = 0;
    bool spins_ = true;
    bool ended_ = false;
    bool late_ = false;
  };

  std::vector<UniqueFd> handles;  // readable when the process has ended
};

class SharedMemory::Calls : public SharedCalls<Processes> {
 public:
  using SharedCalls::SharedCalls;

  // The segments follow the memory's nonce.
  static constexpr std::size_t kFirstSegment = alignof(Segment);
  static std::size_t bytes_for(std::size_t ranks) {
    return kFirstSegment + ranks * sizeof(Segment);
  }
};

std::unique_ptr<SharedMemory> SharedMemory::make(int rank, int world_size,
                                                 const AllGather& all_gather) {
  if (world_size > kMaxRanks) return nullptr;
  const auto bytes = Calls::bytes_for(static_cast<std::size_t>(world_size));
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
      world_size_(static_cast<int>(peers.size())),
      first_pid_(peers.front().pid),
      memory_(map(first_pid_, peers.front().memory, Calls::bytes_for(peers.size()))) {
  Processes processes;
  for (const auto& peer : peers) {
    processes.handles.emplace_back(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
    if (!processes.handles.back()) {
      throw SystemError::failed("pidfd_open", fmt::format("process {}", peer.pid), errno);
    }
  }
  auto* const segments = reinterpret_cast<Calls::Segment*>(memory_.get() + Calls::kFirstSegment);
  calls_ = std::make_unique<Calls>(std::move(processes), segments, rank, world_size_);
}

SharedMemory::~SharedMemory() {
  if (calls_) abort();
}

std::unique_lock<std::recursive_mutex> SharedMemory::hold() { return calls_->hold(); }

void SharedMemory::abort() { calls_->abort(); }

void SharedMemory::exchange(const Call& call, std::span<const std::byte> own,
                            const Consume& consume, std::chrono::milliseconds timeout) {
  calls_->exchange(call, own, consume, timeout);
}

std::shared_ptr<SharedMemory::Transfer> SharedMemory::start(Transfer transfer) {
  return calls_->start(std::move(transfer));
}

void SharedMemory::wait(const std::shared_ptr<Transfer>& transfer,
                        std::chrono::milliseconds timeout) {
  calls_->wait(transfer, timeout);
}

bool SharedMemory::has_ended(const Transfer& transfer) { return calls_->has_ended(transfer); }

std::shared_ptr<std::byte> SharedMemory::allocate(std::size_t bytes,
                                                  std::chrono::milliseconds timeout) {
  const auto uninterrupted = hold();
  bytes *= static_cast<std::size_t>(world_size_);
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

}  // namespace ladder
