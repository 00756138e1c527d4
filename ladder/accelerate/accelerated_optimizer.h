// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ladder/accelerate/gradient_state.h"
#include "ladder/amp/grad_scaler.h"
#include "ladder/optim/lr_scheduler.h"

namespace ladder {

// An optimizer whose step() acts only at the end of an accumulation window.
//
// In the middle of a window, step() and zero_grad() do nothing, so a training loop is written as
// without accumulation. In fp16, step() uses the gradient scaler: it skips the step if a gradient
// is inf or NaN, and chooses the next scale.
//
// Several optimizers in fp16 share the scaler, and each step chooses a next scale, as in Python. A
// loop that steps two optimizers per backward uses a GradScaler itself: step each, then one update.
//
// It is no torch::optim::Optimizer, which could not share its parameter groups: a scheduler is made
// for the wrapped optimizer, before or after. Accelerator::prepare makes one.
// Python's counterpart: accelerate.optimizer.AcceleratedOptimizer.
class AcceleratedOptimizer {
 public:
  // `debug`: a step whose gradients did not come from Accelerator::backward throws UsageError.
  AcceleratedOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                       std::shared_ptr<GradScaler> scaler, std::shared_ptr<GradientState> gradients,
                       bool debug);

  void step();
  void zero_grad();

  // Whether the scaler skipped the last step(). Waits for a GPU.
  bool step_was_skipped() const { return result_ && !result_->taken(); }

  // Steps `scheduler` this often, unless the scaler skipped the last step(). It does not wait for a
  // GPU to know: the scheduler gets its steps before its next use, or this optimizer's next step().
  void step_unless_skipped(const std::shared_ptr<LrScheduler>& scheduler, int times);

  // Divides the gradients by the scale, once per step, for inspection or clipping.
  void unscale_gradients();

  torch::optim::Optimizer& optimizer() { return *optimizer_; }

 private:
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  std::shared_ptr<GradScaler> scaler_;
  std::shared_ptr<GradientState> gradients_;
  bool debug_;
  bool unscaled_ = false;
  std::int64_t backward_calls_ = 0;  // before the last step
  std::optional<StepResult> result_;
  std::vector<std::shared_ptr<LrScheduler>> unsettled_;  // of step_unless_skipped
};

using PreparedOptimizers = std::vector<std::shared_ptr<AcceleratedOptimizer>>;

// A learning-rate scheduler that follows its prepared optimizer.
//
// step() does nothing in the middle of an accumulation window, or if its optimizer skipped a step.
// Otherwise it steps steps_per_call() times: in Python the number of processes where the global
// batch grows with them; see AcceleratorOptions::scheduler_steps_per_call.
//
// In fp16 only the GPU knows at first whether a step was skipped. The scheduler follows before the
// optimizer's next step, by when the GPU has other work, or when it is asked: last_lr() is always
// right, and waits. The learning rate in the optimizer's options follows with it.
// Python's counterpart: accelerate.scheduler.AcceleratedScheduler.
class AcceleratedScheduler {
 public:
  struct Options {
    int steps_per_call = 1;           // >= 1
    bool step_with_optimizer = true;  // false: every step() steps, once
  };

  // `optimizers`: all that the Accelerator has prepared or will prepare. The scheduler's own may
  // be missing.
  AcceleratedScheduler(std::shared_ptr<LrScheduler> scheduler,
                       std::shared_ptr<const PreparedOptimizers> optimizers,
                       std::shared_ptr<GradientState> gradients, Options options);

  void step();

  int steps_per_call() const { return options_.steps_per_call; }
  std::vector<double> last_lr() const { return scheduler_->last_lr(); }
  LrScheduler& scheduler() { return *scheduler_; }

 private:
  std::shared_ptr<LrScheduler> scheduler_;
  std::shared_ptr<const PreparedOptimizers> optimizers_;
  std::shared_ptr<GradientState> gradients_;
  Options options_;
};

}  // namespace ladder
