// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace ladder {

// The progress of one pass over a prepared loader.
struct EpochProgress {
  std::vector<std::int64_t> global_sizes;  // of each batch of the epoch, over all processes
  std::int64_t samples = 0;                // of the epoch, without repetitions
  std::int64_t index = -1;                 // of the current batch; -1 before the first
  std::int64_t local_size = 0;             // samples of the current batch on this process
  std::int64_t samples_before = 0;         // over all processes in the batches before it

  std::int64_t batches() const { return static_cast<std::int64_t>(global_sizes.size()); }
  bool at_last_batch() const { return index + 1 == batches(); }

  // Samples of the current batch over all processes: all, and those that are no repetitions.
  std::int64_t global_size() const { return global_sizes[static_cast<std::size_t>(index)]; }
  std::int64_t real_size() const;
};

// The state that loader, optimizer and scheduler share, so that a step is taken only at the end of
// an accumulation window.
//
// An accumulation window is `num_steps` batches whose gradients are added up for one step. A window
// begins with the first batch of a pass, and with the first after a step. The last window of an
// epoch ends with the epoch, and is shorter if num_steps does not divide the number of batches.
//
// Python's counterpart: accelerate.state.GradientState.
class GradientState {
 public:
  GradientState(int num_steps, bool sync_with_dataloader)
      : num_steps_(num_steps), sync_with_dataloader_(sync_with_dataloader) {}

  int num_steps() const { return num_steps_; }
  // Throws UsageError in the middle of a window, or for a number below 1.
  void set_num_steps(int num_steps);

  // Begins the next batch: decides whether a step follows it, and the weight of its loss. Throws
  // UsageError if a window of several batches has this one already.
  void begin_batch();

  // Whether the next batch begins a pass, although the pass before ended in the middle of a window.
  bool has_left_window() const {
    const bool begins_pass = window_pass_ == nullptr && !passes_.empty();
    return !sync_gradients_ && sync_with_dataloader_ &&
           (begins_pass || (!rounds_.empty() && rounds_.back()->begin));
  }

  // Ends a window without a step.
  void drop_window();

  // Whether the current batch is the last of its window.
  bool sync_gradients() const { return sync_gradients_; }
  // The weight of the current batch in the loss of its window: its samples ÷ those of the window,
  // so that all samples have equal weight, also in a short window; 1 ÷ num_steps without a loader.
  double loss_weight() const { return loss_weight_ * rounds().weight; }
  // Whether begin_batch was ever called.
  bool accumulates() const { return accumulates_; }

  // The current pass, the innermost of nested ones; nullptr outside a loop.
  const EpochProgress* progress() const { return passes_.empty() ? nullptr : passes_.back(); }
  void enter(const EpochProgress& pass) { passes_.push_back(&pass); }
  void leave(const EpochProgress& pass);

  // A pass over JoinedBatches.
  struct Rounds {
    double weight = 1.0;               // of this process's batch
    bool is_last = false;              // no process has another
    std::optional<std::size_t> depth;  // passes over loaders around this one
    bool begin = true;                 // no batch was announced yet
  };
  void enter(Rounds& rounds) { rounds_.push_back(&rounds); }
  void leave(const Rounds& rounds) { std::erase(rounds_, &rounds); }
  std::size_t depth() const { return passes_.size(); }
  // Whether the innermost pass is one over JoinedBatches, and this process's batch a repetition.
  bool is_in_round() const { return rounds().depth == depth(); }
  bool repeats_batch() const { return rounds().weight == 0.0; }
  // The processes ÷ those that have a batch; 0 for a repetition.
  double round_weight() const { return rounds().weight; }

  std::int64_t backward_calls = 0;  // of Accelerator::backward
  // Whether this one, counted from 1, is of the current batch, and no step followed it yet.
  bool awaits_step(std::int64_t call) const {
    return call > std::max(calls_before_batch_, run_end_);
  }

  // Notes a call of some optimizer's step(), and returns the number of backward calls before those
  // that it follows: the backwards since the last step, or the ones that the last step followed.
  std::int64_t calls_before_step();

 private:
  double weight_in_window(const EpochProgress& pass) const;
  Rounds rounds() const { return rounds_.empty() ? Rounds{} : *rounds_.back(); }  // the innermost

  std::int64_t run_begin_ = 0;  // backward calls before those of the last step
  std::int64_t run_end_ = 0;    // and after them
  int num_steps_;
  bool sync_with_dataloader_;
  bool sync_gradients_ = true;
  bool accumulates_ = false;
  double loss_weight_ = 1.0;
  std::int64_t calls_before_batch_ = 0;
  std::int64_t batches_in_window_ = 0;
  std::int64_t window_begin_ = 0;               // index of the first batch of the window
  std::int64_t batch_index_ = 0;                // and of its last one so far
  const EpochProgress* window_pass_ = nullptr;  // the pass of the window; nullptr without a loader
  std::vector<const EpochProgress*> passes_;
  std::vector<Rounds*> rounds_;
};

}  // namespace ladder
