// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "ladder/core/clock.h"

namespace ladder {

// The progress of a rank, for the process that started it. Under `spawn` both share this memory, so
// it outlives a rank that SIGKILL ends; other processes have one of their own.
struct RankStatus {
  std::atomic<std::int64_t> step{0};  // of the optimizer, counted from 1; 0 = outside a training
  std::array<char, 320> last_line{};  // that call_and_report printed, cut; ends with a zero
  std::array<char, 256> saving{};     // path of the checkpoint that it saves, cut, with a zero
  std::atomic<std::int64_t> saving_since{0};  // ms on the steady clock; 0 = it saves none
};

inline RankStatus*& rank_status_pointer() {
  static RankStatus own;
  static RankStatus* status = &own;
  return status;
}

// The status of this process.
inline RankStatus& rank_status() { return *rank_status_pointer(); }

// Replaces the status of this process by `status`, which must outlive the process. Call it before
// any thread starts.
inline void set_rank_status(RankStatus& status) { rank_status_pointer() = &status; }

// The optimizer step of this process, for errors about a lost rank. The training loops set it, at
// the cost of one store.
inline std::int64_t current_step() { return rank_status().step.load(std::memory_order_relaxed); }
inline void set_current_step(std::int64_t step) {
  rank_status().step.store(step, std::memory_order_relaxed);
}

// ", step 58" for error messages; "" outside a training.
inline std::string in_current_step() {
  const std::int64_t step = current_step();
  return step == 0 ? "" : ", step " + std::to_string(step);
}

// A slow disk is not a dead one: a rank that saves a checkpoint may take this long. The launcher
// that ends it, and ranks that wait for it, give up then.
constexpr std::chrono::minutes kSaveTimeout{10};

// While it lives, this process saves the checkpoint `path`: who ends it lets it finish, or reports
// that the checkpoint is lost. One object at a time.
class SavingMark {
 public:
  explicit SavingMark(std::string_view path) {
    auto& status = rank_status();
    status.saving.fill('\0');
    path.copy(status.saving.data(), status.saving.size() - 1);
    status.saving_since.store(steady_milliseconds(), std::memory_order_release);
  }
  ~SavingMark() { rank_status().saving_since.store(0, std::memory_order_release); }
  SavingMark(const SavingMark&) = delete;
  SavingMark& operator=(const SavingMark&) = delete;
};

}  // namespace ladder
