// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "ladder/data/batch.h"

namespace ladder {

// A step whose loss is NaN or infinite.
struct NonFiniteStep {
  double loss = 0.0;       // of this rank
  std::int64_t epoch = 0;  // counts from 1
  std::int64_t step = 0;   // counts from 1 over the whole run
  torch::Tensor indices;   // of this rank's samples in the data set; see Batch
};

// Averages the loss over an epoch and reports the first step whose loss is NaN or infinite.
//
// On the CPU the loss is read in every step. On a GPU the losses stay on the device and are read
// every kGpuInterval steps, so that the loop does not wait: a bad step is reported up to 49 steps
// late, but it is still the first.
class LossMeter {
 public:
  static constexpr std::int64_t kGpuInterval = 50;

  // `interval`: steps between two reads; by default 1 on the CPU and kGpuInterval on a GPU.
  explicit LossMeter(const torch::Device& device, std::int64_t interval = 0);

  // Starts the average of another epoch. Epochs count from 1.
  void begin_epoch(std::int64_t epoch);

  // Adds the loss (a scalar on the device) of one step; steps count from 1 over the whole run.
  // `updated`: whether the optimizer has stepped; with an interval above 1 the device is read only
  // then, so that all ranks read in the same step. Returns the first bad step of those read; the
  // steps read with it are not counted.
  std::optional<NonFiniteStep> add(const torch::Tensor& loss, const Batch& batch, std::int64_t step,
                                   bool updated = true);

  // Reads the pending steps. Waits for a GPU.
  std::optional<NonFiniteStep> flush();

  // The first bad step that was read in this epoch.
  const std::optional<NonFiniteStep>& bad() const { return bad_; }

  // Whether no step is pending.
  bool is_read() const { return pending_.empty(); }

  // Mean over the samples of the epoch that were read; NaN before the first read.
  double mean() const { return samples_ == 0 ? kUnknown : sum_ / static_cast<double>(samples_); }

  // The loss summed over this rank's samples, and their number.
  double sum() const { return sum_; }
  std::int64_t samples() const { return samples_; }

  // The last loss that was read, as a mean over this rank's samples; NaN before the first read and
  // after a step without samples.
  double last() const { return last_; }

  std::int64_t epoch() const { return epoch_; }

 private:
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  std::int64_t interval_;
  std::int64_t epoch_ = 0;
  double sum_ = 0.0;
  double last_ = kUnknown;
  std::int64_t samples_ = 0;
  std::optional<NonFiniteStep> bad_;

  struct Pending {  // a step that is not read
    std::int64_t step;
    torch::Tensor loss;  // on the device
    torch::Tensor indices;
    std::int64_t samples;
    NumItems items;
  };
  static std::vector<double> values_of(const std::vector<Pending>& steps);
  void count(const Pending& step, double loss);
  std::vector<Pending> pending_;
};

}  // namespace ladder
