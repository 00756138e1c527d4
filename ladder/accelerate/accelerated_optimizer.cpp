// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/accelerated_optimizer.h"

#include <algorithm>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/core/log.h"
#include "ladder/optim/fused_optimizer.h"
#include "ladder/optim/network_part.h"
#include "ladder/parallel/averaged_gradient.h"

namespace ladder {
namespace {

bool has_parts(const torch::optim::Optimizer& optimizer) {
  return std::ranges::any_of(optimizer.param_groups(), [](const auto& group) {
    return group_of_parts(group.params()).has_value();
  });
}

// Changes when a backward writes gradients.
std::uint64_t number_of_gradients(const torch::optim::Optimizer& optimizer) {
  std::uint64_t number = 0;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      const auto& gradient = parameter.grad();
      if (gradient.defined()) number += 1 + static_cast<std::uint64_t>(gradient._version());
    }
  }
  return number;
}

}  // namespace

AcceleratedOptimizer::AcceleratedOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                                           std::shared_ptr<GradScaler> scaler,
                                           std::shared_ptr<GradientState> gradients, bool debug,
                                           ProcessGroup group)
    : optimizer_(std::move(optimizer)),
      scaler_(std::move(scaler)),
      gradients_(std::move(gradients)),
      debug_(debug),
      group_(std::move(group)) {}

torch::Tensor AcceleratedOptimizer::step(const torch::optim::Optimizer::LossClosure& closure) {
  std::erase_if(touched_, [before = gradients_->calls_before_step()](std::int64_t call) {
    return call > before;
  });
  if (!gradients_->sync_gradients()) return {};
  // Without a backward since, that zero_grad() was not for the gradients of the next one.
  const auto kept = std::exchange(kept_, {});
  if (kept && *kept == number_of_gradients(*optimizer_)) drop_gradients();
  if (debug_ && !closure && gradients_->backward_calls == backward_calls_) {
    throw UsageError::conflict("AcceleratedOptimizer::step",
                               "no accelerator.backward(loss) since the last step",
                               "replace loss.backward(): it neither scales the loss for fp16 nor "
                               "weighs the batches of an accumulation window");
  }
  for (const auto& scheduler : std::exchange(unsettled_, {})) scheduler->settle();
  if (!closure) require_averaged(*optimizer_, &group_);
  if (!closure && backward_calls_ == 0) warn_without_gradients();
  torch::Tensor loss;
  if (scaler_->is_enabled()) {
    if (closure) {
      throw UsageError::conflict("AcceleratedOptimizer::step",
                                 "a closure, and mixed_precision fp16, which may skip the step",
                                 "use bf16, or an optimizer without a closure");
    }
    result_ = scaler_->step(*optimizer_);
    scaler_->update_later();
  } else {
    in_closure_ = static_cast<bool>(closure);
    const auto step = [&] { loss = optimizer_->step(closure); };
    const bool watches = dynamic_cast<FusedOptimizer*>(optimizer_.get()) != nullptr;
    watches ? step() : lost_steps_.watch(*optimizer_, step);
    in_closure_ = false;
    if (closure) require_averaged(*optimizer_, &group_);
  }
  used_ = true;
  used_foreign_ = used_foreign_ || !touched_.empty();
  backward_calls_ = gradients_->backward_calls;
  return loss;
}

// Once, as such a step changes nothing.
void AcceleratedOptimizer::warn_without_gradients() const {
  if (gradients_->backward_calls == 0 || group_.rank() != 0) return;
  if (number_of_gradients(*optimizer_) > 0) return;
  Log().warn(
      "AcceleratedOptimizer::step: no parameter has a gradient in the first step; hint: make the "
      "optimizer from the parameters() of the network that is prepared, after its last assignment");
}

void AcceleratedOptimizer::step_unless_skipped(const std::shared_ptr<LrScheduler>& scheduler,
                                               int times) {
  if (result_) {
    result_->prefetch();
    unsettled_.push_back(scheduler);
  }
  for (int i = 0; i < times; ++i) {
    if (result_) {
      scheduler->step_if([result = *result_] { return result.taken(); });
    } else {
      scheduler->step();
    }
  }
}

void AcceleratedOptimizer::zero_grad() {
  const bool at_end = gradients_->sync_gradients();
  // Of several optimizers each has its own backward.
  const auto last_backward = last_touched_.value_or(gradients_->backward_calls);
  if (in_closure_ || used_ || gradients_->num_steps() == 1 ||
      (at_end && gradients_->awaits_step(last_backward))) {
    return drop_gradients();
  }
  if (at_end) kept_ = number_of_gradients(*optimizer_);
}

void AcceleratedOptimizer::note_backward() {
  if (!last_touched_) last_touched_ = 0;
  const auto seen = number_of_gradients(*optimizer_);
  if (std::exchange(gradients_seen_, seen) == seen) return;
  last_touched_ = gradients_->backward_calls;
  touched_.push_back(gradients_->backward_calls);
}

void AcceleratedOptimizer::drop_gradients() {
  optimizer_->zero_grad();
  scaler_->drop_unscaled(*optimizer_);
  used_ = false;
  touched_.clear();
  gradients_seen_ = 0;
}

void AcceleratedOptimizer::unscale_gradients() {
  // Shards of this rank may have none, and unscale_ is a collective then.
  const bool has_gradients = number_of_gradients(*optimizer_) > 0 || has_parts(*optimizer_);
  if (has_gradients && !scaler_->is_unscaled(*optimizer_)) scaler_->unscale_(*optimizer_);
}

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
  const auto own = std::ranges::find_if(*optimizers_, [this](const auto& each) {
    return &each->optimizer() == &scheduler_->optimizer();
  });
  if (own != optimizers_->end()) {
    return (*own)->step_unless_skipped(scheduler_, options_.steps_per_call);
  }
  for (int i = 0; i < options_.steps_per_call; ++i) scheduler_->step();
}

}  // namespace ladder
