// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "ladder/data/batch.h"

namespace ladder {

// A step whose loss, or whose averaged gradient, is NaN or infinite.
struct BadStep {
  double loss = 0.0;       // of this rank; finite if another rank's is not
  std::int64_t epoch = 0;  // counts from 1
  std::int64_t step = 0;   // counts from 1 over the whole run
  torch::Tensor indices;   // of this rank's samples in the data set; see Batch
};

// Averages the loss over an epoch, and says when it is NaN or infinite.
//
// On the CPU the loss is looked at in every step. On a GPU that would make the loop wait for
// the device each time, so sum and first bad step are kept there and read every 50 steps: a bad
// step is told up to 49 steps late, but it is still the first.
//
// A rank sees that the loss of another is bad by the gradients: averaged over the ranks, they are
// then NaN on all of them. So all ranks learn of it in the same step, and need not ask each other.
class LossMeter {
 public:
  static constexpr std::int64_t kGpuInterval = 50;

  // `interval`: steps between two looks; by default 1 on the CPU and kGpuInterval on a GPU.
  explicit LossMeter(const torch::Device& device, std::int64_t interval = 0);

  // Starts an average of its own for the next epoch. Epochs count from 1.
  void begin_epoch(std::int64_t epoch);

  // Takes the loss (a scalar on the device) of one step; steps count from 1 over the whole run.
  // `updated`: whether the optimizer has stepped; with an interval only there it looks, as all
  // ranks do.
  // `gradient`: one that has been averaged over the ranks and that bad scores spoil, such as that
  // of the last bias; undefined = look at the loss alone. Returns the first bad step of those it
  // has looked at; what it counts then counts no more.
  std::optional<BadStep> add(const torch::Tensor& loss, const Batch& batch, std::int64_t step,
                             bool updated = true, const torch::Tensor& gradient = {});

  // Looks at what has not been looked at yet. Waits for a GPU.
  std::optional<BadStep> flush();

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

  void keep_on_device(const torch::Tensor& loss, const torch::Tensor& gradient, double weight);

  torch::Device device_;
  std::int64_t interval_;
  std::int64_t epoch_ = 0;
  double sum_ = 0.0;
  double last_ = kUnknown;
  std::int64_t samples_ = 0;

  struct Pending {
    std::int64_t step;
    torch::Tensor indices;
  };
  std::vector<Pending> pending_steps_;
  std::int64_t pending_samples_ = 0;
  torch::Tensor pending_;  // float64 [4] on the device: sum, last loss, first bad step as a place
                           // in pending_steps_ counted from 1, its loss
};

}  // namespace ladder
