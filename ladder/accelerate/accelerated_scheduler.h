// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "ladder/accelerate/accelerated_optimizer.h"
#include "ladder/accelerate/gradient_state.h"
#include "ladder/optim/lr_scheduler.h"

namespace ladder {

using PreparedOptimizers = std::vector<std::shared_ptr<AcceleratedOptimizer>>;

// A learning-rate scheduler that keeps step with its prepared optimizer.
//
// Its step() does nothing in the middle of an accumulation window, and nothing when its optimizer
// skipped a step. Otherwise it steps steps_per_call() times: in Python as often as there are
// processes, where the batch of the run grows with them; see
// AcceleratorOptions::scheduler_steps_per_call.
// Python's counterpart: accelerate.scheduler.AcceleratedScheduler.
class AcceleratedScheduler {
 public:
  struct Options {
    int steps_per_call = 1;           // >= 1
    bool step_with_optimizer = true;  // false: every step() steps, once
  };

  // `optimizers`: all that the Accelerator has prepared or will prepare; the scheduler looks for
  // its own among them.
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
