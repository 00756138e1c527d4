// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "ladder/accelerate/gradient_state.h"
#include "ladder/comm/process_group.h"
#include "ladder/nn/state_dict.h"

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

// A range of batches, or a smart pointer to one, such as a loader of torch::data.
template <typename Range>
concept BatchRange =
    requires(std::remove_reference_t<Range>& range) { range.begin() != range.end(); } ||
    (!std::is_lvalue_reference_v<Range> &&
     requires(Range& range) { range->begin() != range->end(); });

// Whether `Batch` is a class with public members and without a base, whose members a structured
// binding takes: at most eight.
template <typename Batch>
struct BaseOf {
  template <typename Base>
    requires(std::is_base_of_v<Base, Batch> && !std::is_same_v<Base, Batch>)
  operator Base() const;  // NOLINT(google-explicit-constructor)
};
template <typename Batch>
constexpr bool kIsStruct = std::is_aggregate_v<Batch> && std::is_class_v<Batch> && !requires {
  Batch{BaseOf<Batch>()};
} && !requires { Batch{{}, {}, {}, {}, {}, {}, {}, {}, {}}; };

// The contents of a batch, for a comparison of the processes: tensors, numbers, texts, and what
// holds such: structs, ranges, pairs, tuples, smart pointers, a member tensors(). "" for any other
// class.
template <typename Batch>
std::string digest_of_batch(const Batch& batch) {
  std::string text;
  [[maybe_unused]] const auto add = [&text](const auto&... parts) {
    ((text += digest_of_batch(parts) + ' '), ...);
  };
  if constexpr (std::is_convertible_v<Batch, torch::Tensor>) {
    const torch::Tensor tensor = batch;
    return tensor.defined() ? tensor_digest(tensor) : "";
  } else if constexpr (std::is_arithmetic_v<Batch> || std::is_enum_v<Batch>) {
    add(torch::scalar_tensor(static_cast<double>(batch), torch::kDouble));
  } else if constexpr (requires { std::string(batch); }) {
    return std::string(batch);
  } else if constexpr (requires { batch.tensors(); }) {
    add(batch.tensors());
  } else if constexpr (requires { std::begin(batch) != std::end(batch); }) {
    for (const auto& each : batch) {
      if constexpr (!std::is_same_v<std::remove_cvref_t<decltype(each)>, Batch>) add(each);
    }
  } else if constexpr (requires { std::tuple_size<Batch>::value; }) {
    std::apply(add, batch);
  } else if constexpr (requires { *batch, batch.operator->(), static_cast<bool>(batch); }) {
    if (batch) add(*batch);
  } else if constexpr (kIsStruct<Batch>) {
    if constexpr (std::is_empty_v<Batch>) {
    } else if constexpr (requires { Batch{{}, {}, {}, {}, {}, {}, {}, {}}; }) {
      const auto& [a, b, c, d, e, f, g, h] = batch;
      add(a, b, c, d, e, f, g, h);
    } else if constexpr (requires { Batch{{}, {}, {}, {}, {}, {}, {}}; }) {
      const auto& [a, b, c, d, e, f, g] = batch;
      add(a, b, c, d, e, f, g);
    } else if constexpr (requires { Batch{{}, {}, {}, {}, {}, {}}; }) {
      const auto& [a, b, c, d, e, f] = batch;
      add(a, b, c, d, e, f);
    } else if constexpr (requires { Batch{{}, {}, {}, {}, {}}; }) {
      const auto& [a, b, c, d, e] = batch;
      add(a, b, c, d, e);
    } else if constexpr (requires { Batch{{}, {}, {}, {}}; }) {
      const auto& [a, b, c, d] = batch;
      add(a, b, c, d);
    } else if constexpr (requires { Batch{{}, {}, {}}; }) {
      const auto& [a, b, c] = batch;
      add(a, b, c);
    } else if constexpr (requires { Batch{{}, {}}; }) {
      const auto& [a, b] = batch;
      add(a, b);
    } else if constexpr (requires { Batch{{}}; }) {
      const auto& [a] = batch;
      add(a);
    }
  } else if constexpr (requires { batch.data, batch.target; }) {
    add(batch.data, batch.target);
  } else if constexpr (requires { batch.data; }) {
    add(batch.data);
  }
  return text;
}

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
