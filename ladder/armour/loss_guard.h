// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "ladder/data/batch.h"
#include "ladder/monitor/loss_meter.h"
#include "ladder/monitor/run_setup.h"
#include "ladder/monitor/step_observer.h"

namespace ladder {

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
// of one rank throws as soon as it has read the loss. As an observer of a TrainingMonitor, the
// guard uses the losses that the monitor has read.
class LossGuard : public StepObserver {
 public:
  static constexpr std::int64_t kSteps = 10;

  // `model` must outlive the guard.
  LossGuard(const torch::nn::Module& model, RunSetup setup);

  // Epochs count from 1, and each has a mean of its own.
  void begin_epoch(std::int64_t epoch) { begin_epoch(EpochStart{.epoch = epoch}); }

  // As LossMeter::add. `updated` is false for all but the last micro-batch of an accumulation
  // window. With `updated` a collective: every kSteps steps on the CPU, every kGpuInterval steps on
  // a GPU.
  void add(const Batch& batch, const torch::Tensor& loss, std::int64_t step, bool updated = true);

  // As LossMeter::flush. A collective.
  void flush();

  void begin_epoch(const EpochStart& start) override;
  Verdict step(const StepEvent& event) override;
  void end_epoch() override { flush(); }

 private:
  void check(const Batch& batch, bool updated);
  void note(const Batch* batch);
  void agree();

  const torch::nn::Module& model_;
  RunSetup setup_;
  std::shared_ptr<LossMeter> own_meter_;
  std::shared_ptr<LossMeter> meter_;  // of the training loop, or the own one
  std::int64_t unchecked_ = 0;        // steps since the ranks agreed
  std::optional<NonFiniteStep> bad_;  // the first of this rank, until the ranks agree
  std::string bad_tensor_;
};

// The first tensor that is not finite: of the inputs of the batch, then of the gradients of `model`
// in the order of its parameters. "images of sample 17" for the input `images`, "gradient of
// head.weight", or "the loss" if there is none. Waits for a GPU.
std::string first_non_finite_tensor(const Batch& batch, const torch::nn::Module& model);

}  // namespace ladder
