// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/accelerated_scheduler.h"

#include <algorithm>
#include <utility>

namespace ladder {

AcceleratedScheduler::AcceleratedScheduler(std::shared_ptr<LrScheduler> scheduler,
                                           std::shared_ptr<const PreparedOptimizers> optimizers,
                                           std::shared_ptr<GradientState> gradients,
                                           Options options)
    : scheduler_(std::move(scheduler)),
      optimizers_(std::move(optimizers)),
      gradients_(std::move(gradients)),
      options_(options) {}

void AcceleratedScheduler::step() {
  if (!options_.step_with_optimizer) return scheduler_->step();
  if (!gradients_->sync_gradients()) return;
  const bool skipped = std::any_of(optimizers_->begin(), optimizers_->end(), [&](const auto& each) {
    return &each->optimizer() == &scheduler_->optimizer() && each->step_was_skipped();
  });
  if (skipped) return;
  for (int i = 0; i < options_.steps_per_call; ++i) scheduler_->step();
}

}  // namespace ladder
