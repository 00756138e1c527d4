// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "ladder/monitor/step_observer.h"

namespace ladder {

// Records the operations of a few training steps as a Chrome trace.
//
// Open the file in chrome://tracing or ui.perfetto.dev: one row per thread, one box per operation.
// With several ranks, boxes named gloo:all_reduce or nccl:all_reduce are all-reduces of buckets;
// they overlap boxes of autograd. In shared memory they are synchronous, named c10d::allreduce_.
//
// Records steps kFirstStep to kLastStep: earlier ones differ, because they allocate memory and
// rebuild buckets. Without a path it records nothing. One object at a time per process, because the
// recorder is LibTorch's (Kineto). Python's counterpart: torch.profiler.
class StepTrace : public StepObserver {
 public:
  static constexpr std::int64_t kFirstStep = 4;
  static constexpr std::int64_t kLastStep = 8;

  StepTrace() = default;
  // Throws UsageError if no file can be written at `path`.
  explicit StepTrace(std::string path, int rank = 0);
  // Stops the recorder if it still runs, without writing a file.
  ~StepTrace() override;
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  Verdict step(const StepEvent& event) override;
  // finish(), and a warning if no step was recorded.
  Verdict end() override;

  // Call it after training step `step`; steps count from 1 over the whole run.
  void step_done(std::int64_t step);

  // Writes the file if training ended before kLastStep. Throws SystemError.
  void finish();

  // Whether a step was recorded. A run of fewer than kFirstStep steps has nothing to record.
  bool has_recorded() const { return has_recorded_; }

  // The file of a rank: `path` for rank 0, "a.rank1.json" beside "a.json" for rank 1.
  static std::string path_of_rank(const std::string& path, int rank);

 private:
  void start();

  std::string path_;
  int rank_ = 0;  // of this process, for the warning
  bool running_ = false;
  bool has_recorded_ = false;
};

}  // namespace ladder
