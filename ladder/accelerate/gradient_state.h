// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace ladder {

// One walk through a prepared loader, as far as it has come.
struct EpochProgress {
  std::vector<std::int64_t> global_sizes;  // of each batch of the epoch, over all processes
  std::int64_t samples = 0;                // of the epoch, without repetitions
  std::int64_t index = -1;                 // of the batch in hand; -1 before the first
  std::int64_t local_size = 0;             // samples of the batch in hand on this process
  std::int64_t samples_before = 0;         // over all processes in the batches before it

  std::int64_t batches() const { return static_cast<std::int64_t>(global_sizes.size()); }
  bool at_last_batch() const { return index + 1 == batches(); }

  // Samples of the batch in hand over all processes; and those that are no repetitions.
  std::int64_t global_size() const { return global_sizes[static_cast<std::size_t>(index)]; }
  std::int64_t real_size() const;
};

// What loader, optimizer and scheduler must know of each other, so that a step is taken at the end
// of an accumulation window, and only there.
//
// An accumulation window is `num_steps` batches whose gradients are added up for one step. A window
// begins with the first batch of a walk, and with the first after a step. The last one of an epoch
// is short if num_steps does not divide; it ends with the epoch.
//
// Python's counterpart: accelerate.state.GradientState.
class GradientState {
 public:
  GradientState(int num_steps, bool sync_with_dataloader)
      : num_steps_(num_steps), sync_with_dataloader_(sync_with_dataloader) {}

  int num_steps() const { return num_steps_; }
  // Throws UsageError in the middle of a window, or for a number below 1.
  void set_num_steps(int num_steps);

  // Begins with the next batch: decides whether a step follows it, and what its loss counts.
  void begin_batch();

  // Ends a window that no step will follow.
  void drop_window();

  // Whether the batch in hand is the last of its window.
  bool sync_gradients() const { return sync_gradients_; }
  // The part of the batch in hand in the loss of its window. Its samples ÷ those of the window, so
  // that all samples count alike, also in a short window; 1 ÷ num_steps without a loader to ask.
  double loss_weight() const { return loss_weight_; }
  // Whether begin_batch was ever called.
  bool accumulates() const { return accumulates_; }

  // The walk that is under way, the innermost if there are several; nullptr if there is none.
  const EpochProgress* walk() const { return walks_.empty() ? nullptr : walks_.back(); }
  void enter(const EpochProgress& walk) { walks_.push_back(&walk); }
  void leave(const EpochProgress& walk);

  std::int64_t backward_calls = 0;  // of Accelerator::backward

 private:
  double weight_in_window(const EpochProgress& walk) const;

  int num_steps_;
  bool sync_with_dataloader_;
  bool sync_gradients_ = true;
  bool accumulates_ = false;
  double loss_weight_ = 1.0;
  std::int64_t batches_in_window_ = 0;
  std::int64_t window_begin_ = 0;               // index of the first batch of the window
  const EpochProgress* window_walk_ = nullptr;  // whose; nullptr without a loader to ask
  std::vector<const EpochProgress*> walks_;
};

}  // namespace ladder
