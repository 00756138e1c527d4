// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "ladder/comm/process_group.h"
#include "ladder/core/log.h"
#include "ladder/core/rank_status.h"

namespace ladder {

// Logs an operation that takes long: after two seconds, and then each time that it has taken twice
// as long.
//
//     [rank 0] saving out/checkpoint-5: 4 s so far
class SlowLog {
 public:
  // Starts the clock. `log` must outlive the object.
  SlowLog(std::string activity, const Log& log);

  // Logs a line if it is time. `note` ends it.
  void update(std::string_view note);

 private:
  std::string activity_;
  const Log& log_;
  std::int64_t started_;
  std::int64_t next_ = 2000;  // milliseconds
};

struct RunTogetherOptions {
  // A rank may work this long without progress (note_progress in core/rank_status.h); at least the
  // timeout of the group.
  std::chrono::milliseconds deadline = kDiskTimeout;
  SlowLog* slow = nullptr;  // of a run that takes long; not owned; null = no lines
};

// Runs `run` on this rank and waits until all ranks have run theirs, so that no rank waits for one
// that failed alone, for example at a full disk. A collective; `run` itself must call none.
//
// A slow rank is not a lost one: while `run` works, a second thread of the rank takes part in a
// small collective four times per second, or four times per timeout of the group. So ranks that
// wait see a rank that ended or hangs as soon as in any collective, and a rank whose disk takes
// minutes is waited for. The lines of rank 0 in `slow` name the rank that it waits for.
//
// Rethrows the error of this rank; for an error on another, throws a DistributedError that names
// the rank. Throws DistributedError if a rank made no progress until the deadline: on other ranks
// at once, on that rank when `run` returns.
void run_or_fail_together(const ProcessGroup& group, std::string_view operation,
                          const std::function<void()>& run, const RunTogetherOptions& options = {});

}  // namespace ladder
