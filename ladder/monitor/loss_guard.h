// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "ladder/data/batch.h"
#include "ladder/monitor/run_setup.h"

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

// Ends a training whose loss is NaN or infinite, on all ranks after the same step.
//
//     LossGuard guard(*model, {.group = group, .device = device});
//     guard.begin_epoch(epoch);
//     for (...) {
//       loss.backward();
//       optimizer.step();
//       guard.add(batch, loss, ++step);  // before zero_grad: the message names a bad gradient
//     }
//
// A rank with the first bad loss throws a NumericError with its samples, the first tensor that is
// not finite, and the last checkpoint. The others throw a DistributedError that names that rank.
// The ranks agree by an all-reduce of one number, so the guard makes no assumption about the
// network: every kSteps steps on the CPU, and whenever LossMeter reads the loss on a GPU. A group
// of one rank throws as soon as it has read the loss.
class LossGuard {
 public:
  static constexpr std::int64_t kSteps = 10;

  // `model` must outlive the guard.
  LossGuard(const torch::nn::Module& model, RunSetup setup);

  // Epochs count from 1, and each has a mean of its own.
  void begin_epoch(std::int64_t epoch) { meter_.begin_epoch(epoch); }

  // As LossMeter::add. `updated` is false for all but the last micro-batch of an accumulation
  // window. With `updated` a collective: every kSteps steps on the CPU, every kGpuInterval steps on
  // a GPU.
  void add(const Batch& batch, const torch::Tensor& loss, std::int64_t step, bool updated = true);

  // As LossMeter::flush. A collective.
  void flush();

  const LossMeter& meter() const { return meter_; }

 private:
  void note(const std::optional<NonFiniteStep>& found, const Batch* batch);
  void agree();

  const torch::nn::Module& model_;
  RunSetup setup_;
  LossMeter meter_;
  std::int64_t unchecked_ = 0;        // steps since the ranks agreed
  std::optional<NonFiniteStep> bad_;  // the first of this rank, until the ranks agree
  std::string bad_tensor_;
};

// The first tensor that is not finite: of the inputs of the batch, then of the gradients of `model`
// in the order of its parameters. "images of sample 17" for the input `images`, "gradient of
// head.weight", or "the loss" if there is none. Waits for a GPU.
std::string first_non_finite_tensor(const Batch& batch, const torch::nn::Module& model);

}  // namespace ladder
