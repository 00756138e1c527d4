// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace ladder {

// Records the operations of a few training steps as a Chrome trace.
//
// Open the file in chrome://tracing or ui.perfetto.dev: one row per thread, one box per operation.
// With several ranks, boxes named gloo:all_reduce or nccl:all_reduce are buckets of gradients in
// flight; they begin while boxes of autograd are still running: communication overlaps backward.
// In shared memory the exchange is synchronous, in boxes named c10d::allreduce_.
//
// Steps kFirstStep to kLastStep are recorded: the first ones differ, as memory is allocated and
// buckets are rebuilt. Without a path nothing is recorded. One object at a time per process: the
// recorder is LibTorch's own (Kineto). Python's counterpart: torch.profiler.
class StepTrace {
 public:
  static constexpr std::int64_t kFirstStep = 4;
  static constexpr std::int64_t kLastStep = 8;

  StepTrace() = default;
  explicit StepTrace(std::string path);
  // Stops the recorder without a file, if it still runs.
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  // Call it when training step `step` is over; steps count from 1 over the whole run.
  void step_done(std::int64_t step);

  // Writes what was recorded, if the last step did not come. Throws SystemError.
  void finish();

  // Where rank `rank` writes: rank 0 to `path`, the others beside it, "a.rank1.json".
  static std::string path_of_rank(const std::string& path, int rank);

 private:
  void start();

  std::string path_;
  bool running_ = false;
};

}  // namespace ladder
