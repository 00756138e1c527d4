// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <limits>

#include "ladder/data/batch.h"

namespace ladder {

// Averages the loss over an epoch and stops the run when it is NaN or infinite.
//
// On the CPU the loss is looked at in every step. On a GPU that would make the loop wait for
// the device each time, so sum and first bad step are kept there and read every 50 steps: the
// run stops up to 49 steps late, but the error still names the first bad step.
class LossMeter {
 public:
  static constexpr std::int64_t kGpuInterval = 50;

  // `interval`: steps between two looks; by default 1 on the CPU and kGpuInterval on a GPU.
  explicit LossMeter(const torch::Device& device, std::int64_t interval = 0);

  // Starts an average of its own for the next epoch. Epochs count from 1.
  void begin_epoch(std::int64_t epoch);

  // Takes the loss (a scalar on the device) of one step; steps count from 1 over the whole run.
  // Throws NumericError.
  void add(const torch::Tensor& loss, const Batch& batch, std::int64_t step);

  // Looks at what has not been looked at yet. Waits for a GPU. Throws NumericError.
  void flush();

  // Mean of the epoch so far, over samples, as far as looked at; NaN before the first look.
  double mean() const { return samples_ == 0 ? kUnknown : sum_ / static_cast<double>(samples_); }

  // The two parts of the mean, which several ranks add up: the sum of the loss over this rank's
  // samples, and how many they are.
  double sum() const { return sum_; }
  std::int64_t samples() const { return samples_; }

  // The last loss that was looked at; NaN before the first look.
  double last() const { return last_; }

 private:
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  void keep_on_device(const torch::Tensor& loss, double weight, std::int64_t step);
  void take(double loss, double weight, std::int64_t step);

  torch::Device device_;
  std::int64_t interval_;
  std::int64_t epoch_ = 0;
  double sum_ = 0.0;
  double last_ = kUnknown;
  std::int64_t samples_ = 0;

  std::int64_t pending_steps_ = 0;
  std::int64_t pending_samples_ = 0;
  torch::Tensor pending_;  // float64 [4] on the device: sum, last loss, first bad step, its loss
};

}  // namespace ladder
