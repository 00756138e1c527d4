// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/gradient_state.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/core/largest_counts.h"

namespace ladder {

std::int64_t EpochProgress::real_size() const {
  return std::clamp<std::int64_t>(samples - samples_before, 0, global_size());
}

void GradientState::set_num_steps(int num_steps) {
  require_between("gradient_accumulation_steps", num_steps, 1, kMaxBatchesPerStep,
                  "1 steps after each batch");
  if (!sync_gradients_) {
    throw UsageError::conflict("gradient_accumulation_steps",
                               "changed in the middle of an accumulation window",
                               "change it after a step: when sync_gradients() is true");
  }
  num_steps_ = num_steps;
  loss_weight_ = 1.0;
}

void GradientState::begin_batch() {
  accumulates_ = true;
  calls_before_batch_ = backward_calls;
  if (!rounds_.empty()) rounds_.back()->begin = false;
  if (num_steps_ == 1) return;
  const EpochProgress* const batch = progress();
  const bool by_loader = sync_with_dataloader_ && batch != nullptr;
  if (by_loader && !is_in_round()) {
    if (batch == window_pass_ && batch->index == batch_index_) {
      throw UsageError::conflict("Accelerator::accumulate", "called twice for one batch",
                                 "call it once, with all models: accumulate(*one, *two)");
    }
    batch_index_ = batch->index;
  }
  if (sync_gradients_ || (by_loader && batch != window_pass_)) {
    batches_in_window_ = 0;
    window_begin_ = by_loader ? batch->index : 0;
    window_pass_ = by_loader ? batch : nullptr;
  }
  ++batches_in_window_;
  sync_gradients_ = batches_in_window_ == num_steps_ || (by_loader && batch->at_last_batch()) ||
                    (sync_with_dataloader_ && rounds().is_last);
  loss_weight_ = by_loader ? weight_in_window(*batch) : 1.0 / num_steps_;
}

std::int64_t GradientState::calls_before_step() {
  if (run_end_ != backward_calls) run_begin_ = std::exchange(run_end_, backward_calls);
  return run_begin_;
}

void GradientState::drop_window() {
  sync_gradients_ = true;
  window_pass_ = nullptr;
}

void GradientState::leave(const EpochProgress& pass) {
  std::erase(passes_, &pass);
  if (window_pass_ == &pass) window_pass_ = nullptr;
}

double GradientState::weight_in_window(const EpochProgress& pass) const {
  const auto end = std::min<std::int64_t>(window_begin_ + num_steps_, pass.batches());
  const auto window = std::accumulate(pass.global_sizes.begin() + window_begin_,
                                      pass.global_sizes.begin() + end, std::int64_t{0});
  return static_cast<double>(pass.global_size()) / static_cast<double>(window);
}

}  // namespace ladder
