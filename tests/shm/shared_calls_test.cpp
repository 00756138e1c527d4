// SPDX-License-Identifier: Apache-2.0
// The code of SharedMemory, without its system calls, on ranks that a scheduler runs one at a time.
// A seed decides on their number, their calls, which one goes on at each operation of an atomic,
// and who dies or is stopped when. So a run can be repeated: LADDER_FIRST_SEED=7 LADDER_SEEDS=1.
#include "ladder/shm/shared_calls.h"

#include <cxxabi.h>
#include <gtest/gtest.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace ladder {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Bytes = std::vector<std::byte>;

struct Killed {};

// Threads of ranks, each on a stack of its own. One runs until it reaches an operation that others
// could observe; there the seed decides which one goes on. Time passes only there.
class Scheduler {
 public:
  static constexpr int kMost = 8;  // threads

  struct Thread {
    int rank = 0;
    std::function<void()> body;
    ucontext_t context{};
    std::array<std::uint64_t, 2> exceptions{};  // of the C++ runtime: those being handled
    bool finished = false;
    microseconds asleep_until{0};
    const void* sleeps_on = nullptr;
    bool sleeps_for_it_alone = false;
  };

  explicit Scheduler(std::uint64_t seed) : random(seed) { current_ = this; }
  static Scheduler& current() { return *current_; }

  void add(int rank, std::function<void()> body) {
    auto& thread = *threads_.emplace_back(std::make_unique<Thread>());
    thread.rank = rank;
    thread.body = std::move(body);
    getcontext(&thread.context);
    auto& stack = stacks_[threads_.size() - 1];
    stack.resize(kStackBytes);
    thread.context.uc_stack.ss_sp = stack.data();
    thread.context.uc_stack.ss_size = stack.size();
    thread.context.uc_link = &main_;
    makecontext(&thread.context, &Scheduler::run_thread, 0);
  }

  // Returns when all threads have finished.
  void run() {
    while (Thread* next = choose()) {
      running_ = next;
      resume();
    }
  }

  // An operation that other ranks could observe comes next.
  void step() {
    if (ends()) return;
    now += microseconds(1);
    if (dies_at && now >= dies_at->second && running_->rank == dies_at->first) {
      dead_ |= 1U << running_->rank;
      throw Killed();
    }
    if (stops_at && now >= stops_at->second && running_->rank == stops_at->first) {
      running_->asleep_until = now + stopped_for;
      stops_at.reset();
      yield();
    } else if (random() % 3 != 0) {
      yield();
    }
  }

  void yield() {
    if (!ends()) swap(*running_);
  }

  // Until wake(word), or for `longest`.
  void sleep(const void* word, microseconds longest, bool alone) {
    if (ends()) return;
    running_->sleeps_on = word;
    running_->sleeps_for_it_alone = alone;
    running_->asleep_until = now + longest;
    swap(*running_);
    running_->sleeps_on = nullptr;
  }

  void wake(const void* word) {
    for (auto& thread : threads_) {
      if (thread->sleeps_on == word) thread->asleep_until = now;
    }
  }

  bool is_dead(int rank) const { return (dead_ >> rank & 1U) != 0; }
  bool runs_dead() const { return is_dead(running_->rank); }
  const Thread* running() const { return running_; }

  int below(int limit) { return static_cast<int>(random() % static_cast<unsigned>(limit)); }

  std::mt19937_64 random;
  microseconds now{0};
  std::optional<std::pair<int, microseconds>> dies_at;
  std::optional<std::pair<int, microseconds>> stops_at;
  microseconds stopped_for{0};
  std::uint64_t schedule = 0;    // a digest of who ran when
  bool all_slept_alone = false;  // each until one counter changes: a lost wake-up, unless one died

 private:
  static constexpr std::size_t kStackBytes = 128 * 1024;

  static void run_thread() {
    auto& self = *current_;
    auto& thread = *self.running_;
    try {
      thread.body();
    } catch (const Killed&) {
      self.dead_ |= 1U << thread.rank;
    }
    thread.finished = true;
  }

  // Of a dead rank: whether the running thread unwinds already. If not, it begins to.
  bool ends() const {
    if (!is_dead(running_->rank)) return false;
    if (std::current_exception() == nullptr) throw Killed();
    return true;
  }

  // Null: all have finished.
  Thread* choose() {
    std::vector<Thread*> awake;
    auto earliest = microseconds::max();
    bool alone = true;
    for (const auto& thread : threads_) {
      if (thread->finished) continue;
      if (thread->asleep_until <= now || is_dead(thread->rank)) awake.push_back(thread.get());
      earliest = std::min(earliest, thread->asleep_until);
      alone = alone && thread->sleeps_on != nullptr && thread->sleeps_for_it_alone;
    }
    if (awake.empty() && earliest == microseconds::max()) return nullptr;
    if (awake.empty()) {
      all_slept_alone = all_slept_alone || alone;
      now = earliest;
      return choose();
    }
    const auto index = random() % awake.size();
    schedule = (schedule * 1'000'003) ^ (awake[index]->context.uc_stack.ss_size + index) ^
               static_cast<std::uint64_t>(awake[index]->rank + 1) << 8U;
    return awake[index];
  }

  void resume() {
    auto* const runtime = abi::__cxa_get_globals();
    std::memcpy(static_cast<void*>(runtime), running_->exceptions.data(), kExceptionBytes);
    swapcontext(&main_, &running_->context);
    std::memcpy(running_->exceptions.data(), static_cast<const void*>(runtime), kExceptionBytes);
  }

  void swap(Thread& thread) {
    swapcontext(&thread.context, &main_);
    if (is_dead(thread.rank)) throw Killed();  // another thread of it was killed
  }

  static constexpr std::size_t kExceptionBytes = sizeof(Thread::exceptions);
  static inline Scheduler* current_ = nullptr;
  static inline std::array<std::vector<char>, kMost> stacks_;

  std::vector<std::unique_ptr<Thread>> threads_;
  Thread* running_ = nullptr;
  ucontext_t main_{};
  unsigned dead_ = 0;
};

// An atomic in memory that ranks share.
template <typename T>
class Observed {
 public:
  T load(std::memory_order) const {
    Scheduler::current().step();
    return value_;
  }
  void store(T value, std::memory_order) {
    Scheduler::current().step();
    if (!Scheduler::current().runs_dead()) value_ = value;
  }
  T own() const { return value_; }

 private:
  T value_{};
};

template <typename RulesType>
struct Simulated {
  using Rules = RulesType;
  using Counter = Observed<std::uint32_t>;
  using Flag = Observed<bool>;
  struct Slot {
    std::array<char, 64> call;
    std::array<std::byte, 16> bytes;
  };
  static constexpr std::size_t kMaxRanks = 4;
  static constexpr std::size_t kAlignment = 1;
  static std::uint32_t own(const Counter& counter) { return counter.own(); }
  static void wake(Counter& counter) { Scheduler::current().wake(&counter); }

  class Mutex {
   public:
    void lock() {
      auto& scheduler = Scheduler::current();
      while (owner_ != nullptr && owner_ != scheduler.running()) {
        scheduler.sleep(this, milliseconds(10'000), /*alone=*/true);
      }
      owner_ = scheduler.running();
      ++times_;
    }
    void unlock() {
      if (--times_ > 0) return;
      owner_ = nullptr;
      Scheduler::current().wake(this);
    }

   private:
    const Scheduler::Thread* owner_ = nullptr;
    int times_ = 0;
  };

  class Deadline {
   public:
    explicit Deadline(milliseconds timeout)
        : timeout_(timeout), end_(Scheduler::current().now + timeout) {}
    bool passed() const { return Scheduler::current().now >= end_; }
    milliseconds timeout() const { return timeout_; }

   private:
    milliseconds timeout_;
    microseconds end_;
  };

  class Wait {
   public:
    Wait(const Simulated&, int rank, Deadline& deadline)
        : rank_(rank), deadline_(deadline), spins_left_(Scheduler::current().random() % 4) {}
    void look() {
      spins_ = spins_left_ > 0;
      if (spins_) --spins_left_;
      ended_ = !spins_ && Scheduler::current().is_dead(rank_);
      late_ = deadline_.passed();
    }
    bool ended() const { return ended_; }
    bool late() const { return late_; }
    bool spins() const { return spins_; }
    void yield() { Scheduler::current().yield(); }
    void sleep(Counter& counter, std::uint32_t before, bool alone) {
      Scheduler::current().step();
      if (counter.own() != before) return;
      Scheduler::current().sleep(&counter, alone ? milliseconds(100) : microseconds(100), alone);
    }

   private:
    int rank_;
    Deadline& deadline_;
    std::uint64_t spins_left_;
    bool spins_ = true;
    bool ended_ = false;
    bool late_ = false;
  };
};

// What all ranks call, by a seed.
struct Step {
  std::size_t bytes = 0;
  int from = -1;  // as SharedMemory::Call::from
  int shift = 0;  // each rank sends to the one so many after it; 0 = a collective
  bool rows = false;
};

struct Plan {
  int ranks = 0;
  std::vector<Step> steps;
  std::vector<Step> beside;  // transfers of a second thread of each rank
  bool faults = false;
};

Plan plan_of(Scheduler& scheduler) {
  auto& random = scheduler.random;
  Plan plan{.ranks = 2 + scheduler.below(3), .steps = {}, .beside = {}};
  for (auto left = 1 + scheduler.below(6); left > 0; --left) {
    Step step{.bytes = random() % 70};
    if (random() % 3 == 0) step.from = scheduler.below(plan.ranks);
    if (random() % 3 == 0) step.shift = 1 + scheduler.below(plan.ranks - 1);
    step.rows = step.from < 0 && random() % 3 == 0;
    if (step.rows) step.bytes -= step.bytes % static_cast<std::size_t>(plan.ranks);
    plan.steps.push_back(step);
  }
  const bool transfers = std::ranges::any_of(plan.steps, [](auto& step) { return step.shift > 0; });
  for (auto left = transfers ? 0 : random() % 4; left > 0; --left) {
    plan.beside.push_back({.bytes = random() % 200, .from = -1, .shift = 1});
  }
  plan.faults = random() % 2 == 0;
  return plan;
}

Bytes bytes_of(int rank, std::size_t step, std::size_t count) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] =
        static_cast<std::byte>((i * 7 + step * 31 + static_cast<std::size_t>(rank) * 85) % 251);
  }
  return bytes;
}

struct Outcome {
  std::string wrong;  // empty = as it must be
  std::uint64_t schedule = 0;
};

// One seed's run.
template <typename Rules>
class Simulation {
 public:
  using System = Simulated<Rules>;
  using Calls = SharedCalls<System>;

  explicit Simulation(std::uint64_t seed)
      : scheduler_(seed), plan_(plan_of(scheduler_)), segments_(4) {}

  Outcome run() {
    auto& random = scheduler_.random;
    const auto soon = [&] { return microseconds(random() % 2'000); };
    const auto any_rank = [&] { return scheduler_.below(plan_.ranks); };
    if (plan_.faults && random() % 2 == 0) scheduler_.dies_at = {any_rank(), soon()};
    if (plan_.faults && random() % 2 == 0) scheduler_.stops_at = {any_rank(), soon()};
    scheduler_.stopped_for = milliseconds(random() % 2 == 0 ? 5 : 3'000);
    for (int rank = 0; rank < plan_.ranks; ++rank) {
      calls_.push_back(std::make_unique<Calls>(System(), segments_.data(), rank, plan_.ranks));
      scheduler_.add(rank, [this, rank] { rank_body(rank, plan_.steps); });
      if (plan_.beside.empty()) continue;
      scheduler_.add(rank, [this, rank] { rank_body(rank, plan_.beside); });
    }
    scheduler_.run();
    if (!plan_.faults && scheduler_.all_slept_alone) wrong("all ranks slept: a lost wake-up");
    if (scheduler_.now > milliseconds(20'000)) wrong("it took more than any wait may");
    return {wrong_, scheduler_.schedule};
  }

 private:
  static constexpr milliseconds kTimeout{1'000};

  void wrong(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }

  void rank_body(int rank, const std::vector<Step>& steps) {
    try {
      for (std::size_t i = 0; i < steps.size(); ++i) {
        if (steps[i].shift > 0) {
          transfer(rank, i, steps[i]);
        } else {
          exchange(rank, i, steps[i]);
        }
      }
    } catch (const DistributedError& error) {
      if (!plan_.faults) wrong(error.what());
    }
  }

  void exchange(int rank, std::size_t number, const Step& step) {
    const auto own = bytes_of(rank, number, step.bytes);
    std::vector<Bytes> all(static_cast<std::size_t>(plan_.ranks));
    const auto rows = step.rows ? static_cast<std::size_t>(plan_.ranks) : 1;
    const auto consume = [&](int from, std::size_t offset, std::span<const std::byte> piece) {
      scheduler_.step();
      auto& bytes = all[static_cast<std::size_t>(from)];
      bytes.resize(step.bytes);
      const auto size = piece.size() / rows;
      for (std::size_t row = 0; row < rows; ++row) {
        if (step.rows && row == static_cast<std::size_t>(from)) continue;
        std::ranges::copy(piece.subspan(row * size, size),
                          &bytes[row * step.bytes / rows + offset]);
      }
    };
    calls(rank).exchange({.operation = "all", .form = "", .from = step.from, .rows = step.rows},
                         own, consume, kTimeout);
    for (int from = 0; from < plan_.ranks; ++from) {
      const bool publishes = step.from < 0 || step.from == from;
      auto expected = publishes ? bytes_of(from, number, step.bytes) : Bytes();
      if (step.rows) {
        const auto row = static_cast<std::ptrdiff_t>(step.bytes / rows);
        std::fill_n(expected.begin() + from * row, row, std::byte{0});  // that rank has it
      }
      if (all[static_cast<std::size_t>(from)] != expected) wrong("other bytes in a collective");
    }
  }

  void transfer(int rank, std::size_t number, const Step& step) {
    const int to = (rank + step.shift) % plan_.ranks;
    const int from = (rank + plan_.ranks - step.shift) % plan_.ranks;
    auto sent = bytes_of(rank, number, step.bytes);
    Bytes received(step.bytes);
    const auto sends = start(rank, to, /*sends=*/true, sent);
    const auto receives = start(rank, from, /*sends=*/false, received);
    calls(rank).wait(receives, kTimeout);
    calls(rank).wait(sends, kTimeout);
    if (received != bytes_of(from, number, step.bytes)) wrong("other bytes in a transfer");
  }

  std::shared_ptr<SharedMemory::Transfer> start(int rank, int peer, bool sends, Bytes& bytes) {
    return calls(rank).start(
        {.peer = peer, .sends = sends, .form = "bytes", .bytes = bytes, .owner = nullptr});
  }

  Calls& calls(int rank) { return *calls_[static_cast<std::size_t>(rank)]; }

  Scheduler scheduler_;
  Plan plan_;
  std::vector<typename Calls::Segment> segments_;
  std::vector<std::unique_ptr<Calls>> calls_;
  std::string wrong_;
};

template <typename Rules>
Outcome outcome_of(std::uint64_t seed) {
  return Simulation<Rules>(seed).run();
}

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(SharedCalls, KeepBytesAndEndWhicheverRankGoesOnDiesOrStops) {
  const auto first = number_from("LADDER_FIRST_SEED", 1);
  const auto count = number_from("LADDER_SEEDS", 1'000);
  for (auto seed = first; seed < first + count; ++seed) {
    ASSERT_EQ(outcome_of<ProtocolRules>(seed).wrong, "")
        << "repeat with LADDER_FIRST_SEED=" << seed << " LADDER_SEEDS=1";
  }
}

struct OneSlot : ProtocolRules {
  static constexpr std::uint32_t kSlots = 1;
};
struct TooFarAhead : ProtocolRules {
  static constexpr std::uint32_t kAhead = kRing + 1;
};

template <typename Rules>
std::uint64_t first_seed_that_fails() {
  std::uint64_t seed = 1;
  while (seed < 1'000 && outcome_of<Rules>(seed).wrong.empty()) ++seed;
  return seed;
}

TEST(SharedCalls, APlantedFaultIsFoundAndItsSeedRepeatsIt) {
  const auto check = [](auto rules) {
    using Rules = decltype(rules);
    const auto seed = first_seed_that_fails<Rules>();
    const auto once = outcome_of<Rules>(seed), again = outcome_of<Rules>(seed);
    EXPECT_NE(once.wrong, "");
    EXPECT_EQ(once.wrong, again.wrong);
    EXPECT_EQ(once.schedule, again.schedule);
    EXPECT_NE(once.schedule, outcome_of<Rules>(seed + 1).schedule);
    std::printf("found by seed %llu: %s\n", static_cast<unsigned long long>(seed),
                once.wrong.c_str());
  };
  check(OneSlot());
  check(TooFarAhead());
}

}  // namespace
}  // namespace ladder
