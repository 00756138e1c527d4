// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ladder/comm/process_group.h"
#include "ladder/kernels/fixed_point.h"

namespace ladder {

// The sums of ExactDataParallel: over the micro-batches of a step on all ranks, in fixed point (see
// kernels/fixed_point.h). One tensor holds them all, so one all-reduce adds them over the ranks.
class ExactSums {
 public:
  using Tensors = std::vector<torch::Tensor>;

  // What one micro-batch adds.
  struct Addends {
    Tensors gradients;   // of a loss times `loss_scale`; undefined = zero
    Tensors statistics;  // changes of BatchNorm's buffers; undefined = zero
    double loss_scale = 1.0;
  };

  struct Totals {
    Tensors gradients;   // as `like`; undefined if they were in all micro-batches
    Tensors statistics;  // means over the micro-batches, float32
  };

  // Tensors with the form of the sums: device, dtype, sizes and strides.
  ExactSums(Tensors gradients_like, Tensors statistics_like);

  // Adds micro-batches of this rank.
  void add(const std::vector<Addends>& micro_batches);

  // Adds these too, and returns the sums over all ranks, times `loss_scale`; then starts from zero.
  // A collective. If one addend was not finite, or too large, all gradients are NaN on all ranks;
  // the same for the statistics. Throws UsageError, on all ranks, for more than 4,096
  // micro-batches.
  Totals finish(const std::vector<Addends>& micro_batches, double loss_scale,
                const ProcessGroup& group);

  // Starts from zero.
  void clear() { holds_any_ = false; }

 private:
  struct Target {
    torch::Tensor like;
    FixedPoint form;
    std::int64_t begin;  // of its sum in sums_
  };
  enum Count : std::int64_t { kMicroBatches, kBadGradients, kBadStatistics, kCounts };

  bool is_gradient(std::size_t target) const { return target < gradients_; }
  Count bad_count(std::size_t target) const {
    return is_gradient(target) ? kBadGradients : kBadStatistics;
  }
  Tensors addends_of(std::size_t target, const std::vector<Addends>& micro_batches) const;
  void add_target(std::size_t target, const std::vector<Addends>& micro_batches);
  Totals finish_alone(const std::vector<Addends>& micro_batches, double loss_scale);
  double factor_of(std::size_t target, std::int64_t micro_batches, double loss_scale) const;

  std::vector<Target> targets_;  // the gradients, then the statistics
  std::size_t gradients_;
  torch::Tensor sums_;    // int64: of the targets; of their numbers of addends; the other counts
  std::int64_t addends_;  // where the numbers of addends begin
  std::int64_t counts_;   // where the other counts begin
  bool holds_any_ = false;
};

}  // namespace ladder
