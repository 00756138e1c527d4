// SPDX-License-Identifier: Apache-2.0
// The protocol of shared memory (ladder/shm/protocol.h) under the C++ memory model. Relacy runs the
// header's own code on atomics of its own: it chooses which rank goes on at each of their
// operations, and whether a load returns the newest value or the one before, and reports plain
// accesses that race and values that are wrong. A wait is a loop that yields.
//
//   build/bin/protocol_model          some seconds: small bounds, and every weakened protocol
//   build/bin/protocol_model --full   minutes: larger bounds
//   build/bin/protocol_model 3        the third weakened protocol: the execution that fails
//
// Not explored: loads that return a value older than the last two, stores that overtake earlier
// loads, and futexes with the count of their sleepers, whose waits end after 0.1 s in any case.
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "ladder/shm/protocol.h"

namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;  // a macro from the next line on

}  // namespace

#include <relacy/relacy.hpp>

namespace ladder {
namespace {

// ProtocolRules, to be weakened.
struct Rules {
  static inline auto kPublish = ProtocolRules::kPublish;
  static inline auto kSeePublished = ProtocolRules::kSeePublished;
  static inline auto kWrite = ProtocolRules::kWrite;
  static inline auto kSeeWritten = ProtocolRules::kSeeWritten;
  static inline auto kRead = ProtocolRules::kRead;
  static inline auto kSeeRead = ProtocolRules::kSeeRead;
  static inline auto kFail = ProtocolRules::kFail;
  static inline auto kSeeFailed = ProtocolRules::kSeeFailed;
  static inline std::uint32_t kSlots = ProtocolRules::kSlots;
  static constexpr std::uint32_t kRing = 2;
  static inline std::uint32_t kAhead = kRing;
  static inline bool waits_for_last_rank = true;
  static inline bool meets_before = true;
  static inline bool meets_after = true;
};

// std::atomic, of Relacy.
template <typename T>
class Atomic {
 public:
  T load(std::memory_order order) const { return value_.load(relacys(order), $); }
  void store(T value, std::memory_order order) {
    own_ = value;
    value_.store(value, relacys(order), $);
  }
  T own() const { return own_; }

 private:
  static rl::memory_order relacys(std::memory_order order) {
    if (order == kRelaxed) return rl::mo_relaxed;
    if (order == ProtocolRules::kPublish) return rl::mo_release;
    RL_ASSERT(order == ProtocolRules::kSeePublished);
    return rl::mo_acquire;
  }
  rl::atomic<T> value_;
  T own_{};
};

// Where ranks do not fail, looking for it would only multiply the executions.
struct NeverSet {
  bool load(std::memory_order) const { return false; }
  void store(bool, std::memory_order) {}
};

template <typename FlagType, std::size_t kChannels>
struct System {
  using Rules = ladder::Rules;
  using Counter = Atomic<std::uint32_t>;
  using Flag = FlagType;
  using Slot = rl::var<unsigned>;
  static constexpr std::size_t kMaxRanks = kChannels;
  static std::uint32_t own(const Counter& counter) { return counter.own(); }
  static void wake(Counter&) {}
};

struct RankFailed {};

struct Wait {
  void look() {}
  void fail_if_lost(bool failed) const {
    if (failed) throw RankFailed();
  }
  bool spins() const { return true; }
  void yield() { rl::yield(1, $); }
  template <typename Counter>
  void sleep(Counter&, std::uint32_t) {}
};

// What all tests share. Counters begin three pieces before they wrap around.
template <typename Test, unsigned kRanks, typename Flag, std::size_t kChannels>
struct Ranks : rl::test_suite<Test, static_cast<int>(kRanks)> {
  using Rank = Protocol<System<Flag, kChannels>>;
  static constexpr std::uint32_t kFirst = static_cast<std::uint32_t>(-3);
  std::array<typename Rank::Segment, std::size_t{kRanks}> segments;

  void before() {
    for (auto& segment : segments) {
      segment.pieces.store(kFirst, kRelaxed);
      segment.failed.store(false, kRelaxed);
      for (auto& slot : segment.slots) slot($) = 0U;
      for (auto& channel : segment.to) {
        channel.written.store(kFirst, kRelaxed);
        channel.read.store(kFirst, kRelaxed);
        for (auto& slot : channel.slots) slot($) = 0U;
      }
    }
  }
  Rank rank_of(unsigned index) { return Rank(segments.data(), static_cast<int>(index), kFirst); }

  static void meet(Rank& own, unsigned index) {
    for (unsigned other = 0; other < kRanks - (Rules::waits_for_last_rank ? 0 : 1); ++other) {
      if (other == index) continue;
      const int rank = static_cast<int>(other);
      Wait wait;
      own.wait_for(rank, own.pieces_of(rank), wait, [&] { return own.has_published(rank); });
    }
  }
};

// Each rank publishes pieces and reads those of all.
template <unsigned kRanks, unsigned kPieces>
struct Collectives : Ranks<Collectives<kRanks, kPieces>, kRanks, NeverSet, 0> {
  void thread(unsigned index) {
    auto own = this->rank_of(index);
    for (unsigned piece = 0; piece < kPieces; ++piece) {
      own.publish([&](auto& slot) { slot($) = 100 * index + piece; });
      this->meet(own, index);
      for (unsigned rank = 0; rank < kRanks; ++rank) {
        if (rank == index) continue;
        const unsigned read = own.published(static_cast<int>(rank))($);
        RL_ASSERT(read == 100 * rank + piece);
      }
    }
  }
};

// Rank 0 sends pieces to rank 1 through a ring of two slots.
template <unsigned kPieces>
struct Channel : Ranks<Channel<kPieces>, 2, NeverSet, 2> {
  void thread(unsigned index) {
    auto own = this->rank_of(index);
    for (unsigned piece = 0; piece < kPieces; ++piece) {
      Wait wait;
      if (index == 0) {
        own.wait_for(1, own.read_by(1), wait,
                     [&] { return own.send(1, [&](auto& slot) { slot($) = 100 + piece; }); });
        continue;
      }
      own.wait_for(0, own.written_by(0), wait, [&] {
        return own.receive(0, [&](auto& slot) {
          const unsigned read = slot($);
          RL_ASSERT(read == 100 + piece);
        });
      });
    }
  }
};

// Rank 1 publishes some pieces and fails. Rank 0 gets all of them, and then the failure.
template <unsigned kPieces>
struct Failure : Ranks<Failure<kPieces>, 2, Atomic<bool>, 0> {
  void thread(unsigned index) {
    auto own = this->rank_of(index);
    unsigned pieces = 0;
    try {
      for (; index == 0 || pieces < kPieces; ++pieces) {
        own.publish([&](auto& slot) { slot($) = pieces; });
        this->meet(own, index);
      }
      own.fail();
    } catch (const RankFailed&) {
      RL_ASSERT(index == 0 && pieces == kPieces);
    }
  }
};

// The path of large tensors: each rank writes its part to the tensors of all, between two meetings.
template <unsigned kRanks>
struct InPlace : Ranks<InPlace<kRanks>, kRanks, NeverSet, 0> {
  std::array<std::array<rl::var<unsigned>, std::size_t{kRanks}>, std::size_t{kRanks}> tensors;

  void before() {
    Ranks<InPlace<kRanks>, kRanks, NeverSet, 0>::before();
    for (auto& tensor : tensors) {
      for (auto& part : tensor) part($) = 0U;
    }
  }
  void meet(bool really, typename InPlace::Rank& own, unsigned index) {
    own.publish([](auto&) {});
    if (really) Ranks<InPlace<kRanks>, kRanks, NeverSet, 0>::meet(own, index);
  }
  void thread(unsigned index) {
    auto own = this->rank_of(index);
    for (auto& part : tensors[index]) part($) = index + 1;
    meet(Rules::meets_before, own, index);
    unsigned sum = 0;
    for (auto& tensor : tensors) sum += tensor[index]($);
    for (auto& tensor : tensors) tensor[index]($) = sum;
    meet(Rules::meets_after, own, index);
    for (auto& part : tensors[index]) {
      const unsigned read = part($);
      RL_ASSERT(read == kRanks * (kRanks + 1) / 2);
      part($) = 0U;  // of the next step
    }
  }
};

struct Result {
  rl::test_result_e end;
  std::uint64_t executions;
  double seconds;
};

bool show_execution = false;  // the one that fails

// All executions, or those in which ranks are preempted at most `preemptions` times.
template <typename Test>
Result explore(unsigned preemptions) {
  std::ostream nowhere(nullptr);
  rl::test_params params;
  params.search_type = preemptions == 0 ? rl::fair_full_search_scheduler_type
                                        : rl::fair_context_bound_scheduler_type;
  params.context_bound = preemptions;
  params.output_stream = show_execution ? &std::cout : &nowhere;
  params.progress_stream = &nowhere;
  const auto start = std::chrono::steady_clock::now();
  rl::simulate<Test>(params);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  return {params.test_result, params.stop_iteration, taken.count()};
}

struct Bound {
  const char* name;
  Result (*explore)(unsigned preemptions);
  unsigned preemptions;  // 0 = any number
  bool full;             // with --full only
};

const Bound kBounds[] = {
    {"collectives, 2 ranks, 2 pieces", explore<Collectives<2, 2>>, 0, false},
    {"collectives, 2 ranks, 3 pieces", explore<Collectives<2, 3>>, 0, true},
    {"collectives, 3 ranks, 2 pieces", explore<Collectives<3, 2>>, 2, false},
    {"collectives, 3 ranks, 2 pieces", explore<Collectives<3, 2>>, 3, true},
    {"transfer, ring of 2, 3 pieces", explore<Channel<3>>, 0, false},
    {"transfer, ring of 2, 4 pieces", explore<Channel<4>>, 5, true},
    {"failure after 1 piece, 2 ranks", explore<Failure<1>>, 3, false},
    {"failure after 1 piece, 2 ranks", explore<Failure<1>>, 0, true},
    {"in place, 2 ranks", explore<InPlace<2>>, 0, false},
    {"in place, 3 ranks", explore<InPlace<3>>, 3, true},
};

struct Weakened {
  const char* name;
  void (*weaken)();
  Result (*explore)(unsigned preemptions);
};

const Weakened kWeakened[] = {
    {"publish: release -> relaxed", [] { Rules::kPublish = kRelaxed; }, explore<Collectives<2, 2>>},
    {"see published: acquire -> relaxed", [] { Rules::kSeePublished = kRelaxed; },
     explore<Collectives<2, 2>>},
    {"one slot instead of two", [] { Rules::kSlots = 1; }, explore<Collectives<2, 2>>},
    {"no wait for the last rank", [] { Rules::waits_for_last_rank = false; },
     explore<Collectives<2, 2>>},
    {"write: release -> relaxed", [] { Rules::kWrite = kRelaxed; }, explore<Channel<3>>},
    {"see written: acquire -> relaxed", [] { Rules::kSeeWritten = kRelaxed; }, explore<Channel<3>>},
    {"read: release -> relaxed", [] { Rules::kRead = kRelaxed; }, explore<Channel<3>>},
    {"see read: acquire -> relaxed", [] { Rules::kSeeRead = kRelaxed; }, explore<Channel<3>>},
    {"sender one piece too far ahead", [] { Rules::kAhead = Rules::kRing + 1; },
     explore<Channel<3>>},
    {"fail: release -> relaxed", [] { Rules::kFail = kRelaxed; }, explore<Failure<1>>},
    {"see failed: acquire -> relaxed", [] { Rules::kSeeFailed = kRelaxed; }, explore<Failure<1>>},
    {"in place: no meeting before", [] { Rules::meets_before = false; }, explore<InPlace<2>>},
    {"in place: no meeting after", [] { Rules::meets_after = false; }, explore<InPlace<2>>},
};

int failures = 0;

void report(const char* name, unsigned preemptions, const Result& result, bool good) {
  const auto bound =
      preemptions == 0 ? "all executions" : "preemptions <= " + std::to_string(preemptions);
  std::printf("%-36s %-18s %12llu %7.2f s  %s%s\n", name, bound.c_str(),
              static_cast<unsigned long long>(result.executions), result.seconds,
              rl::test_result_str(result.end), good ? "" : "  <- NOT EXPECTED");
  std::fflush(stdout);
  failures += good ? 0 : 1;
}

void explore_bounds(bool full) {
  std::printf("%-36s %-18s %12s\n", "protocol", "bound", "executions");
  for (const auto& bound : kBounds) {
    if (bound.full && !full) continue;
    const auto result = bound.explore(bound.preemptions);
    report(bound.name, bound.preemptions, result, result.end == rl::test_result_success);
  }
}

void explore_weakened(std::size_t first, std::size_t count) {
  std::printf("%-36s %-18s %12s\n", "weakened protocol", "bound", "executions");
  for (std::size_t i = first; i < first + count; ++i) {
    const auto& weakened = kWeakened[i];
    weakened.weaken();
    const auto result = weakened.explore(0);
    report(weakened.name, 0, result, result.end != rl::test_result_success);
    Rules::kPublish = Rules::kWrite = Rules::kRead = Rules::kFail = ProtocolRules::kPublish;
    Rules::kSeePublished = Rules::kSeeWritten = Rules::kSeeRead = Rules::kSeeFailed =
        ProtocolRules::kSeePublished;
    Rules::kSlots = ProtocolRules::kSlots;
    Rules::kAhead = Rules::kRing;
    Rules::waits_for_last_rank = Rules::meets_before = Rules::meets_after = true;
  }
}

}  // namespace
}  // namespace ladder

int main(int argc, char** argv) {
  const std::string argument = argc > 1 ? argv[1] : "";
  const auto number = static_cast<std::size_t>(std::atoi(argument.c_str()));
  if (number > 0 && number <= std::size(ladder::kWeakened)) {
    ladder::show_execution = true;
    ladder::explore_weakened(number - 1, 1);
  } else {
    ladder::explore_bounds(argument == "--full");
    ladder::explore_weakened(0, std::size(ladder::kWeakened));
  }
  return ladder::failures == 0 ? 0 : 1;
}
