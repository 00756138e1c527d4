// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ladder/comm/process_group.h"
#include "ladder/exact/product_exchange.h"
#include "ladder/kernels/fixed_point.h"
#include "ladder/kernels/weight_products.h"

namespace ladder {

// The sums of ExactDataParallel: over the micro-batches of a step on all ranks, in fixed point (see
// kernels/fixed_point.h). One tensor holds them all, and all-reduce adds it over the ranks, but for
// the gradients of large linear layers (see product_exchange.h).
class ExactSums {
 public:
  using Tensors = std::vector<torch::Tensor>;

  // What one micro-batch adds.
  struct Addends {
    Tensors gradients;               // of a loss times `loss_scale`; undefined = zero
    std::vector<Products> products;  // further gradients, not multiplied yet
    Tensors statistics;              // changes of BatchNorm's buffers; undefined = zero
  };

  struct Totals {
    Tensors gradients;   // as `like`; undefined if they were in all micro-batches
    Tensors statistics;  // means over the micro-batches, float32
  };

  // Tensors with the form of the sums: device, dtype, sizes and strides.
  ExactSums(Tensors gradients_like, Tensors statistics_like);

  // Adds micro-batches of this rank. `loss_scale`: a factor of their loss.
  void add(const std::vector<Addends>& micro_batches, double loss_scale);

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
  // All addends of one target.
  struct Parts {
    Tensors tensors;  // laid out as the target
    Products products;
  };
  enum Count : std::size_t { kMicroBatches, kBadGradients, kBadStatistics, kCounts };

  bool is_gradient(std::size_t target) const { return target < gradients_; }
  // Of the bad addends of a target.
  std::int64_t& bad(std::size_t target) {
    return counts_[is_gradient(target) ? kBadGradients : kBadStatistics];
  }
  std::int64_t& addends(std::size_t target) { return counts_[kCounts + target]; }
  double factor_of(std::size_t target) const;

  std::vector<Parts> parts_of(const std::vector<Addends>& micro_batches) const;
  void add_counts(const std::vector<Parts>& parts, const std::vector<Addends>& micro_batches);
  void add_to_sum(std::size_t index, const Parts& parts);
  // Per target the products of all ranks, of which each multiplies a part; none: all-reduce.
  std::vector<Products> exchanged(const std::vector<Parts>& parts, const ProcessGroup& group) const;
  torch::Tensor multiply_rows(std::size_t index, const Products& products,
                              const ProcessGroup& group);
  void write_products(std::size_t index, const Products& products, float* total);
  // But for targets with `rows`.
  void all_reduce_sums(const Tensors& rows, const ProcessGroup& group);
  torch::Tensor finish_alone(std::size_t index, const Parts& parts);
  torch::Tensor decoded(std::size_t index) const;

  std::vector<Target> targets_;  // the gradients, then the statistics
  std::size_t gradients_;
  std::vector<std::int64_t> counts_;  // as Count; then the addends of each target
  torch::Tensor sums_;                // int64: of the targets; room for the counts
  double loss_scale_ = 1.0;
  bool holds_any_ = false;
};

}  // namespace ladder
