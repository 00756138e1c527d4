// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/gradient_state.h"

#include <algorithm>
#include <numeric>

#include "ladder/core/error.h"

namespace ladder {

std::int64_t EpochProgress::real_size() const {
  return std::clamp<std::int64_t>(samples - samples_before, 0, global_size());
}

void GradientState::set_num_steps(int num_steps) {
  if (num_steps < 1) {
    throw UsageError::out_of_range("gradient_accumulation_steps", num_steps, "a number >= 1");
  }
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
  if (num_steps_ == 1) return;
  const EpochProgress* const batch = walk();
  const bool by_loader = sync_with_dataloader_ && batch != nullptr;
  if (sync_gradients_ || (by_loader && batch != window_walk_)) {
    batches_in_window_ = 0;
    window_begin_ = by_loader ? batch->index : 0;
    window_walk_ = by_loader ? batch : nullptr;
  }
  ++batches_in_window_;
  sync_gradients_ = batches_in_window_ == num_steps_ || (by_loader && batch->at_last_batch());
  loss_weight_ = by_loader ? weight_in_window(*batch) : 1.0 / num_steps_;
}

void GradientState::drop_window() {
  sync_gradients_ = true;
  window_walk_ = nullptr;
}

void GradientState::leave(const EpochProgress& walk) {
  std::erase(walks_, &walk);
  if (window_walk_ == &walk) window_walk_ = nullptr;
}

double GradientState::weight_in_window(const EpochProgress& walk) const {
  const auto begin = window_begin_;
  const auto end = std::min<std::int64_t>(begin + num_steps_, walk.batches());
  const auto window = std::accumulate(walk.global_sizes.begin() + begin,
                                      walk.global_sizes.begin() + end, std::int64_t{0});
  return static_cast<double>(walk.global_size()) / static_cast<double>(window);
}

}  // namespace ladder
