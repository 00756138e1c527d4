// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace ladder {

// Records what a few training steps spend their time on, as a Chrome trace.
//
// Open the file in chrome://tracing or ui.perfetto.dev: a row a thread, a box an operation.
// With several ranks, boxes named gloo:all_reduce or nccl:all_reduce are buckets of gradients
// under way; they begin while boxes of autograd are still running: communication overlaps
// backward. In shared memory it is done at once, in boxes named c10d::allreduce_.
//
// Steps kFirstStep to kLastStep are recorded: the first ones differ, as memory is allocated and
// buckets are rebuilt. Made without a path it records nothing. One at a time in a process: the
// recorder is LibTorch's own (Kineto). Python's counterpart: torch.profiler.
class Trace {
 public:
  static constexpr std::int64_t kFirstStep = 4;
  static constexpr std::int64_t kLastStep = 8;

  Trace() = default;
  explicit Trace(std::string path);
  // Stops the recorder without a file, if it still runs.
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

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
