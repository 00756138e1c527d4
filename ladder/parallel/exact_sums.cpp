// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/exact_sums.h"

#include <ATen/Parallel.h>
#include <torch/utils.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <string>
#include <utility>

#include "ladder/core/error.h"

namespace ladder {
namespace {

using Tensors = ExactSums::Tensors;

constexpr std::int64_t kBlock = 2048;         // its sums stay in the L1 cache
constexpr std::int64_t kGrain = 16 * kBlock;  // elements worth a thread
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Whether the loops over floats can take it.
bool is_plain(const torch::Tensor& tensor) {
  return tensor.is_cpu() && tensor.scalar_type() == torch::kFloat;
}

// `tensor` with the strides of `like`, so that both have their elements in one order.
torch::Tensor laid_out_as(const torch::Tensor& like, const torch::Tensor& tensor) {
  if (tensor.layout() != torch::kStrided) return laid_out_as(like, tensor.to_dense());
  if (tensor.strides() == like.strides()) return tensor;
  return torch::empty_strided(like.sizes(), like.strides(), tensor.options()).copy_(tensor);
}

// The elements in the order of memory.
torch::Tensor elements_of(const torch::Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1});
}

// Calls task(begin, count, addresses of the block in each tensor) for blocks of all elements.
template <typename Task>
void for_blocks(const Tensors& tensors, std::int64_t size, const Task& task) {
  at::parallel_for(0, size, kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::vector<const float*> from(tensors.size());
    for (; begin < end; begin += kBlock) {
      for (std::size_t k = 0; k < tensors.size(); ++k) {
        from[k] = tensors[k].const_data_ptr<float>() + begin;
      }
      task(begin, std::min(kBlock, end - begin), from);
    }
  });
}

}  // namespace

ExactSums::ExactSums(Tensors gradients_like, Tensors statistics_like)
    : gradients_(gradients_like.size()) {
  std::int64_t size = 0;
  const auto add = [&](const Tensors& tensors, const FixedPoint& form) {
    for (const auto& tensor : tensors) {
      const bool dense = tensor.is_non_overlapping_and_dense();
      targets_.push_back({dense ? tensor.detach() : tensor.detach().contiguous(), form, size});
      size += tensor.numel();
    }
  };
  add(gradients_like, kFixedPointGradient);
  add(statistics_like, kFixedPointStatistic);
  addends_ = size;
  counts_ = addends_ + std::ssize(targets_);
  const auto device = targets_.empty() ? torch::Device(torch::kCPU) : targets_[0].like.device();
  sums_ = torch::zeros({counts_ + kCounts}, torch::dtype(torch::kInt64).device(device));
}

Tensors ExactSums::addends_of(std::size_t target, const std::vector<Addends>& micro_batches) const {
  Tensors addends;
  for (const auto& micro_batch : micro_batches) {
    const auto& tensor = is_gradient(target) ? micro_batch.gradients[target]
                                             : micro_batch.statistics[target - gradients_];
    if (tensor.defined()) addends.push_back(laid_out_as(targets_[target].like, tensor));
  }
  return addends;
}

void ExactSums::add_target(std::size_t index, const std::vector<Addends>& micro_batches) {
  const auto& target = targets_[index];
  const auto size = target.like.numel();
  const auto addends = addends_of(index, micro_batches);
  const double divisor =
      is_gradient(index) && !micro_batches.empty() ? micro_batches.front().loss_scale : 1.0;
  sums_[addends_ + static_cast<std::int64_t>(index)] += std::ssize(addends);
  auto sum = sums_.narrow(0, target.begin, size);
  auto bad = sums_[counts_ + bad_count(index)];
  if (addends.empty()) {
    if (!holds_any_) sum.zero_();
  } else if (is_plain(addends.front())) {
    std::atomic<std::int64_t> outside = 0;
    for_blocks(addends, size, [&](std::int64_t begin, std::int64_t count, const auto& from) {
      outside += static_cast<std::int64_t>(
          !add_in_fixed_point(target.form, from, divisor, count, /*fresh=*/!holds_any_,
                              sum.data_ptr<std::int64_t>() + begin));
    });
    bad += outside.load();
  } else {
    if (!holds_any_) sum.zero_();
    for (const auto& addend : addends) {
      const auto number = elements_of(addend).to(torch::kDouble) / divisor;
      bad += number.abs().le(target.form.limit).logical_not().sum();
      sum += (number / target.form.step).round().to(torch::kInt64);
    }
  }
}

void ExactSums::add(const std::vector<Addends>& micro_batches) {
  const torch::NoGradGuard no_grad;
  if (!holds_any_) sums_.narrow(0, addends_, sums_.size(0) - addends_).zero_();
  for (std::size_t i = 0; i < targets_.size(); ++i) add_target(i, micro_batches);
  sums_[counts_ + kMicroBatches] += std::ssize(micro_batches);
  holds_any_ = true;
}

double ExactSums::factor_of(std::size_t target, std::int64_t micro_batches,
                            double loss_scale) const {
  return is_gradient(target) ? loss_scale : 1.0 / static_cast<double>(micro_batches);
}

ExactSums::Totals ExactSums::finish(const std::vector<Addends>& micro_batches, double loss_scale,
                                    const ProcessGroup& group) {
  const torch::NoGradGuard no_grad;
  const bool plain = std::all_of(targets_.begin(), targets_.end(),
                                 [](const Target& target) { return is_plain(target.like); });
  if (group.world_size() == 1 && !holds_any_ && plain) {
    return finish_alone(micro_batches, loss_scale);
  }
  add(micro_batches);
  group.all_reduce(sums_);
  clear();
  const auto numbers = sums_.narrow(0, addends_, sums_.size(0) - addends_).cpu();
  const auto* const addends = numbers.const_data_ptr<std::int64_t>();
  const auto* const counts = addends + targets_.size();
  if (counts[kMicroBatches] > FixedPoint::kMostAddends) {
    throw UsageError::out_of_range("micro-batches of one step", counts[kMicroBatches],
                                   "at most " + std::to_string(FixedPoint::kMostAddends),
                                   "use larger micro-batches, or fewer accumulation steps");
  }
  Totals totals;
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    const auto& target = targets_[i];
    const double factor = factor_of(i, counts[kMicroBatches], loss_scale);
    const auto sum = sums_.narrow(0, target.begin, target.like.numel());
    torch::Tensor total;
    if (addends[i] == 0) {
    } else if (counts[bad_count(i)] > 0) {
      total = torch::full_like(target.like, kNan);
    } else if (is_plain(target.like)) {
      total = torch::empty_like(target.like);
      at::parallel_for(0, sum.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
        from_fixed_point(target.form, sum.const_data_ptr<std::int64_t>() + begin, factor,
                         end - begin, total.data_ptr<float>() + begin);
      });
    } else {
      total = torch::empty_like(target.like);
      elements_of(total).copy_(sum.to(torch::kDouble) * (target.form.step * factor));
    }
    (is_gradient(i) ? totals.gradients : totals.statistics).push_back(std::move(total));
  }
  return totals;
}

// Nothing to exchange and nothing before: the integers of a block never leave the cache.
ExactSums::Totals ExactSums::finish_alone(const std::vector<Addends>& micro_batches,
                                          double loss_scale) {
  std::array<std::atomic<bool>, kCounts> bad = {};
  Totals totals;
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    const auto& target = targets_[i];
    const auto addends = addends_of(i, micro_batches);
    const double divisor = is_gradient(i) ? loss_scale : 1.0;
    const double factor = factor_of(i, std::ssize(micro_batches), loss_scale);
    torch::Tensor total;
    if (!addends.empty()) total = torch::empty_like(target.like);
    for_blocks(addends, addends.empty() ? 0 : target.like.numel(),
               [&](std::int64_t begin, std::int64_t count, const auto& from) {
                 std::array<std::int64_t, kBlock> sum;
                 if (!add_in_fixed_point(target.form, from, divisor, count, true, sum.data())) {
                   bad[bad_count(i)] = true;
                 }
                 from_fixed_point(target.form, sum.data(), factor, count,
                                  total.data_ptr<float>() + begin);
               });
    (is_gradient(i) ? totals.gradients : totals.statistics).push_back(std::move(total));
  }
  for (const auto& gradient : totals.gradients) {
    if (bad[kBadGradients] && gradient.defined()) gradient.fill_(kNan);
  }
  for (const auto& statistic : totals.statistics) {
    if (bad[kBadStatistics] && statistic.defined()) statistic.fill_(kNan);
  }
  return totals;
}

}  // namespace ladder
