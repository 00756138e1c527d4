// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ladder/accelerate/gradient_state.h"
#include "ladder/amp/grad_scaler.h"
#include "ladder/comm/process_group.h"
#include "ladder/optim/lost_steps.h"
#include "ladder/optim/lr_scheduler.h"

namespace ladder {

// An optimizer whose step() acts only at the end of an accumulation window.
//
// In the middle of a window, step() and zero_grad() do nothing, so a training loop is written as
// without accumulation, with zero_grad() after the step or before the backward. In fp16, step()
// uses the gradient scaler: it skips the step if a gradient is inf or NaN, and chooses the next
// scale.
//
// zero_grad() clears gradients that a step has used, and never those that the window's step still
// has to use; see docs/reference/5-accelerator.md, "Accumulation".
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
  // `group`: a step throws it for parameters that train alone; see averaged_gradient.h.
  AcceleratedOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                       std::shared_ptr<GradScaler> scaler, std::shared_ptr<GradientState> gradients,
                       bool debug, ProcessGroup group = ProcessGroup::single());

  // `closure`, for optimizers such as torch::optim::LBFGS, calls zero_grad(), backward and returns
  // the loss, which step returns. It is not called in the middle of a window, and refused in fp16.
  torch::Tensor step(const torch::optim::Optimizer::LossClosure& closure = nullptr);
  void zero_grad();

  // After a backward, if there are several optimizers: notes whether it left gradients here.
  void note_backward();
  // Whether a step used gradients of backwards that step() did not follow, such as those that a
  // generator's loss leaves in a discriminator.
  bool used_foreign_gradients() const { return used_foreign_; }

  // Clears the gradients, also of a window without its step.
  void drop_gradients();

  std::vector<torch::optim::OptimizerParamGroup>& param_groups() {
    return optimizer_->param_groups();
  }

  // Whether the scaler skipped the last step(). Waits for a GPU.
  bool step_was_skipped() const { return result_ && !result_->taken(); }

  // Steps `scheduler` this often, unless the scaler skipped the last step(). It does not wait for a
  // GPU to know: the scheduler gets its steps before its next use, or this optimizer's next step().
  void step_unless_skipped(const std::shared_ptr<LrScheduler>& scheduler, int times);

  // Divides the gradients, if there are any, by the scale, once per step, for inspection or
  // clipping.
  void unscale_gradients();

  torch::optim::Optimizer& optimizer() { return *optimizer_; }

 private:
  void warn_without_gradients() const;

  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  std::shared_ptr<GradScaler> scaler_;
  std::shared_ptr<GradientState> gradients_;
  bool debug_;
  ProcessGroup group_;
  bool used_ = false;                  // the gradients, by a step
  bool in_closure_ = false;            // which zeroes and computes them again
  std::int64_t backward_calls_ = 0;    // before the last step
  std::uint64_t gradients_seen_ = 0;   // a number that changes with the gradients
  std::vector<std::int64_t> touched_;  // backwards that left gradients, and no step() followed
  std::optional<std::int64_t> last_touched_;  // the last that left gradients; unset without notes
  bool used_foreign_ = false;
  std::optional<std::uint64_t> kept_;  // the same at a zero_grad() that kept them
  std::optional<StepResult> result_;
  LostSteps lost_steps_;
  std::vector<std::shared_ptr<LrScheduler>> unsettled_;  // of step_unless_skipped
};

using PreparedOptimizers = std::vector<std::shared_ptr<AcceleratedOptimizer>>;

// A learning-rate scheduler that follows its prepared optimizer.
//
// step() does nothing in the middle of an accumulation window, or if its optimizer skipped a step.
// Otherwise it steps steps_per_call() times: in Python the number of processes where the global
// batch grows with them; see AcceleratorOptions::scheduler_steps_per_call.
//
// In fp16, the scheduler follows a step before the optimizer's next one, without a wait for a GPU,
// or when last_lr() is called, which waits. The rate in the optimizer's options follows with it.
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
