// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "ladder/data/batch.h"
#include "ladder/train/loss_meter.h"
#include "ladder/train/run_setup.h"

namespace ladder {

// Ends a training whose loss is NaN or infinite, on all ranks in the same step.
//
//     LossGuard guard(*model, {.group = group, .device = device});
//     guard.begin_epoch(epoch);
//     for (...) {
//       loss.backward();
//       optimizer.step();
//       guard.add(batch, loss, ++step);  // before zero_grad: the message names a bad gradient
//     }
//
// The rank whose loss is bad throws a NumericError with its samples, the first tensor that is not
// finite, and the last checkpoint. The others throw a DistributedError that names that rank. They
// learn of it by an all-reduce of one number after each step of the optimizer, so no assumption
// about the network is made; a group of one rank needs none.
//
// On a GPU the loss is read every LossMeter::kGpuInterval steps, so that the loop does not wait for
// the device: the error comes up to 49 steps late and names the first bad step.
//
// LossMeter keeps the mean of the loss; this class adds the agreement of the ranks.
class LossGuard {
 public:
  // `model` must outlive the guard.
  LossGuard(const torch::nn::Module& model, RunSetup setup);

  // Epochs count from 1, and each has a mean of its own.
  void begin_epoch(std::int64_t epoch) { meter_.begin_epoch(epoch); }

  // Takes the loss (a scalar on the device) of one step; steps count from 1 over the whole run.
  // `updated`: whether the optimizer stepped; false for all but the last batch of an accumulation
  // window. With `updated` a collective: every step on the CPU, every kGpuInterval steps on a GPU.
  void add(const Batch& batch, const torch::Tensor& loss, std::int64_t step, bool updated = true);

  // Reads what has not been read yet. A collective. Waits for a GPU.
  void flush();

  const LossMeter& meter() const { return meter_; }

 private:
  void note(const std::optional<NonFiniteStep>& found, const Batch* batch);
  void agree();

  const torch::nn::Module& model_;
  RunSetup setup_;
  LossMeter meter_;
  std::optional<NonFiniteStep> bad_;  // of this rank, until its accumulation window ends
  std::string bad_tensor_;
};

// The first tensor that is not finite: of the inputs of the batch, then of the gradients of `model`
// in the order of its parameters. "images of sample 17" for the input `images`, "gradient of
// head.weight", or "the loss" if there is none. Waits for a GPU.
std::string first_non_finite_tensor(const Batch& batch, const torch::nn::Module& model);

}  // namespace ladder
