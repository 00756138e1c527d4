// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <benchmark/benchmark.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "ladder/comm/process_group.h"
#include "ladder/core/unique_fd.h"

namespace ladder {

// Benchmarks that take two ranks.
//
// Google Benchmark runs in rank 0, and it alone knows how often a step is repeated. Rank 1 has to
// repeat it as often, because each waits for the other in every collective. So rank 0 first sends
// an order through a pipe: what to run, with which argument, how often. The ranks are copies of one
// process (see spawn), so that a function has the same address in both.
//
// The ranks meet at the first order, and have one thread each while they follow one. In the group
// every wait has a deadline. For orders rank 1 waits as long as rank 0 lives, which may measure
// something else for minutes: however rank 0 ends, spawn then ends rank 1.
class TwoRanks {
 public:
  using Step = std::function<void()>;
  using Repeat = std::function<void(const Step& step)>;
  // Sets something up and calls `repeat`, once, with the step to measure. Runs on both ranks.
  using Body = void (*)(const ProcessGroup& group, std::int64_t argument, const Repeat& repeat);

  // Opens the pipe: before spawn, so that both ranks have it. Throws SystemError.
  TwoRanks();

  enum class Backend { kGloo, kSharedMemory };

  // Rank 0: runs `body` on both ranks, with state.range(0). Times the steps after the third.
  void measure(benchmark::State& state, Body body, Backend backend);

  // Rank 0, last: lets rank 1 end.
  void finish() { send({}); }

  // Rank 1: does what it is told until finish().
  void follow();

 private:
  struct Order {
    Body body = nullptr;  // none = the end
    Backend backend = Backend::kGloo;
    std::int64_t argument = 0;
    std::int64_t steps = 0;
  };

  void send(const Order& order) const;
  Order receive() const;
  const ProcessGroup& group(Backend backend);

  UniqueFd orders_in_;   // read by rank 1
  UniqueFd orders_out_;  // written by rank 0
  std::optional<ProcessGroup> gloo_;
  std::optional<ProcessGroup> shared_memory_;
};

// The rows of comm_bench.cpp. `ranks` must live as long as they may run.
void register_comm_benchmarks(TwoRanks& ranks);

}  // namespace ladder
