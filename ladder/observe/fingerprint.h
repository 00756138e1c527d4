// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <string>

#include "ladder/data/batch.h"
#include "ladder/io/appended_file.h"
#include "ladder/monitor/step_observer.h"

namespace ladder {

// Records hashes of every k-th training step: of the positions of the samples, the loss, each
// gradient, and each weight after the step. tools/first_difference then finds the first difference
// of two runs, in micro-batches also if they have different numbers of ranks:
//
//     tools/first_difference a.rank0.jsonl b.rank0.jsonl
//     step 17, rank 0, gradient of conv2.weight: 3fa4... in A, 91bc... in B
//
// One file per rank, one JSON object per line, described in docs/formats.md. Hashing copies every
// tensor to the CPU, so it slows training. Names omit the "module." of wrappers.
class Fingerprint : public StepObserver {
 public:
  // `path`: the file of this rank. Throws UsageError for a missing folder or an interval below 1.
  Fingerprint(const std::string& path, std::int64_t interval, int rank, int world_size);

  // Call after optimizer.step() and before zero_grad(). Steps count from 1 over the whole run.
  void record(std::int64_t step, const Batch& batch, const torch::Tensor& loss,
              const torch::nn::Module& module);

  Verdict step(const StepEvent& event) override;
  // Warns if no step was recorded: a run may be shorter than the interval.
  Verdict end() override;

  // "a.rank0.jsonl" for the metrics file "a.jsonl" and rank 0.
  static std::string path_beside(const std::string& metrics_path, int rank);

 private:
  JsonLines file_;
  bool has_recorded_ = false;
  std::int64_t interval_;
  int rank_;
  int world_size_;
};

}  // namespace ladder
