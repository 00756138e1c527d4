// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "ladder/accelerate/gradient_state.h"
#include "ladder/comm/process_group.h"
#include "ladder/guest/foreign_batch.h"

namespace ladder {

// The part of a pass over JoinedBatches that is the same for all ranges. In each round every
// process has a batch, or repeats its last one with the weight 0.
class JoinedRounds {
 public:
  JoinedRounds(const ProcessGroup& group, std::shared_ptr<GradientState> gradients)
      : group_(group), gradients_(std::move(gradients)) {
    gradients_->enter(rounds_);
  }
  ~JoinedRounds() { gradients_->leave(rounds_); }
  JoinedRounds(const JoinedRounds&) = delete;
  JoinedRounds& operator=(const JoinedRounds&) = delete;

  // Counts the processes that have a batch for the next round. A collective. Throws UsageError, on
  // all processes, if some have none in the first.
  void count_next(bool has_batch);

  // For one sequence that all processes read: throws UsageError, on all, if the first batches
  // differ. A collective.
  void require_same(const std::string& digest);

  // Begins the counted round, unless no process has a batch.
  bool begin(bool has_batch);
  // After count_next() for the round that follows.
  void mark_last() {
    rounds_.is_last = next_ == 0;
    rounds_.depth = gradients_->depth();
  }

 private:
  ProcessGroup group_;
  std::shared_ptr<GradientState> gradients_;
  GradientState::Rounds rounds_;
  std::int64_t next_ = 0;  // processes with a batch
  bool is_first_ = true;
};

// Any range of batches, of any type and without a known length, for several processes.
//
// Accelerator::prepare and join make one. A pass lasts as long as any process has a batch. One that
// ends early repeats its last batch with the weight 0 in Accelerator::backward, so that it takes
// part in all collectives; the loss of the others then counts more, so each step has the mean over
// the processes that still have a batch. Each batch needs a collective of one number.
//
// prepare deals one sequence of batches, which must be the same on all processes: seed a range that
// shuffles. A pass compares the first batch; see digest_of_batch.
// join takes what each process has of its own.
//
// Batches with a member to(device), such as tensors, are moved to the device. The position is in no
// checkpoint: after load_state a pass begins with the first batch.
//
// Python's counterpart: Accelerator.join_uneven_inputs, over loaders of iterable data sets.
template <typename Range>
class JoinedBatches {
 public:
  // `range`: a range, or a pointer to one. This process gets each `parts`-th batch, from number
  // `part` on.
  JoinedBatches(Range&& range, const ProcessGroup& group, std::shared_ptr<GradientState> gradients,
                torch::Device device, std::int64_t part, std::int64_t parts)
      : range_(std::forward<Range>(range)),
        group_(group),
        gradients_(std::move(gradients)),
        device_(device),
        part_(part),
        parts_(parts) {}

  class Iterator;
  using IsJoined = void;  // prepare returns it unchanged

  Iterator begin() { return Iterator(*this); }
  std::default_sentinel_t end() const { return {}; }

 private:
  auto& range() {
    if constexpr (requires { range_.begin(); }) {
      return range_;
    } else {
      return *range_;
    }
  }

  Range range_;  // a reference if an lvalue was given
  ProcessGroup group_;
  std::shared_ptr<GradientState> gradients_;
  torch::Device device_;
  std::int64_t part_;
  std::int64_t parts_;
};

template <typename Range>
class JoinedBatches<Range>::Iterator {
 public:
  using Inner = decltype(std::declval<JoinedBatches&>().range().begin());
  using value_type = std::remove_cvref_t<decltype(*std::declval<Inner&>())>;

  explicit Iterator(JoinedBatches& batches)
      : batches_(&batches),
        inner_(batches.range().begin()),
        rounds_(std::make_unique<JoinedRounds>(batches.group_, batches.gradients_)) {
    if (batches.parts_ > 1) {
      rounds_->require_same(inner_ != batches.range().end() ? digest_of_batch(*inner_) : "");
    }
    fetch();
    ++*this;
  }

  value_type& operator*() { return *current_; }
  Iterator& operator++() {
    at_end_ = !rounds_->begin(next_.has_value());
    if (at_end_) return *this;
    if (next_) current_ = std::move(next_);
    fetch();
    rounds_->mark_last();
    return *this;
  }
  bool operator==(std::default_sentinel_t) const { return at_end_; }

 private:
  void fetch() {
    next_.reset();
    for (; !next_ && inner_ != batches_->range().end(); ++inner_) {
      if (number_++ % batches_->parts_ != batches_->part_) continue;
      if constexpr (requires { (*inner_).to(batches_->device_); }) {
        next_.emplace((*inner_).to(batches_->device_));
      } else {
        next_.emplace(*inner_);
      }
    }
    rounds_->count_next(next_.has_value());
  }

  JoinedBatches* batches_;
  Inner inner_;
  std::unique_ptr<JoinedRounds> rounds_;
  std::optional<value_type> current_;
  std::optional<value_type> next_;
  std::int64_t number_ = 0;
  bool at_end_ = false;
};

}  // namespace ladder
