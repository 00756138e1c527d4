// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ladder/data/batch.h"
#include "ladder/io/appended_file.h"
#include "ladder/monitor/step_observer.h"

namespace ladder {

// Records every k-th training step: its samples, the loss, each gradient before and after it is
// averaged, each weight after the step. tools/same_run then finds the first difference of two runs,
// and names the mistake that explains it:
//
//     tools/same_run a --against b
//
// One file per rank, one JSON object per line, described in docs/formats.md; tools/record_run.py
// writes the same from Python. Hashing copies every tensor to the CPU, so it slows training. Names
// omit the "module." of wrappers.
class Fingerprint : public StepObserver {
 public:
  // Of a step, what neither the batch nor the module has.
  struct Extras {
    std::vector<double> rates;    // of the optimizer's groups; empty: of FusedOptimizers that step
    std::optional<double> scale;  // of a GradScaler
  };

  // `path`: the file of this rank. Throws UsageError for a missing folder or an interval below 1.
  Fingerprint(const std::string& path, std::int64_t interval, int rank, int world_size);

  // Call before the first step: the first record also has the weights that the training begins
  // with, after `steps` steps of an earlier run, and each has the gradients of the backward passes
  // on the CPU before they are averaged.
  void watch(const torch::nn::Module& module, std::int64_t steps = 0);

  // Adds a batch of an accumulation window whose last batch record() gets.
  void add(const Batch& batch, const torch::Tensor& loss);

  // Call after optimizer.step() and before zero_grad(). Steps count from 1 over the whole run.
  void record(std::int64_t step, const Batch& batch, const torch::Tensor& loss,
              const torch::nn::Module& module, const Extras& extras = {});

  // The module whose weights begin_epoch() records, which must outlive the observer, and the
  // precision of the run, such as "bf16".
  void observe(const torch::nn::Module& module, std::string precision) {
    module_ = &module;
    precision_ = std::move(precision);
  }
  void begin_epoch(const EpochStart& start) override;
  Verdict step(const StepEvent& event) override;
  // Warns if no step was recorded: a run may be shorter than the interval.
  Verdict end() override;

  // "a.rank0.jsonl" for the metrics file "a.jsonl" and rank 0.
  static std::string path_beside(const std::string& metrics_path, int rank);

 private:
  struct Local;  // the gradients of this rank, for the hooks
  nlohmann::ordered_json head(std::int64_t step, std::int64_t epoch) const;

  JsonLines file_;
  bool has_recorded_ = false;
  std::int64_t interval_;
  int rank_;
  int world_size_;
  const torch::nn::Module* module_ = nullptr;
  std::string precision_;
  std::shared_ptr<Local> local_;
  nlohmann::ordered_json before_;  // the weights that the training begins with, until recorded
  nlohmann::ordered_json window_;  // samples, rows and losses of its batches so far
};

}  // namespace ladder
