// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "ladder/accelerate/gradient_state.h"
#include "ladder/amp/grad_scaler.h"

namespace ladder {

// An optimizer whose step() steps only when it is time to.
//
// In the middle of an accumulation window, step() and zero_grad() do nothing, so a training loop
// is written as if there were no accumulation. In fp16, step() goes through the gradient scaler:
// it skips the step when a gradient is inf or NaN, and chooses the next scale.
//
// Several optimizers in fp16 share the scaler, and each step chooses a next scale, as in Python. A
// loop that steps two for one backward uses a GradScaler itself: step each, then one update.
//
// It is no torch::optim::Optimizer, whose parameter groups could not be shared: a scheduler is made
// for the optimizer that it wraps, before or after. Accelerator::prepare makes one.
// Python's counterpart: accelerate.optimizer.AcceleratedOptimizer.
class AcceleratedOptimizer {
 public:
  // `debug`: a step whose gradients did not come from Accelerator::backward throws UsageError.
  AcceleratedOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                       std::shared_ptr<GradScaler> scaler, std::shared_ptr<GradientState> gradients,
                       bool debug);

  void step();
  void zero_grad();

  // Whether the last step() was one that the scaler skipped. Waits for a GPU.
  bool step_was_skipped() const { return result_ && !result_->taken(); }

  // Divides the gradients by the scale, once a step, to be looked at or clipped.
  void unscale_gradients();

  torch::optim::Optimizer& optimizer() { return *optimizer_; }

 private:
  void require_backward() const;

  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  std::shared_ptr<GradScaler> scaler_;
  std::shared_ptr<GradientState> gradients_;
  bool debug_;
  bool unscaled_ = false;
  std::int64_t backward_calls_ = 0;  // before the last step
  std::optional<StepResult> result_;
};

}  // namespace ladder
