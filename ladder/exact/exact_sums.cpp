// SPDX-License-Identifier: Apache-2.0
#include "ladder/exact/exact_sums.h"

#include <ATen/Parallel.h>
#include <torch/utils.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <limits>
#include <optional>
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
void for_blocks(const Tensors& tensors, std::int64_t elements, const Task& task) {
  at::parallel_for(0, elements, kGrain, [&](std::int64_t begin, std::int64_t end) {
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
  counts_.resize(kCounts + targets_.size());
  const auto device = targets_.empty() ? torch::Device(torch::kCPU) : targets_[0].like.device();
  sums_ = torch::empty({size + std::ssize(counts_)}, torch::dtype(torch::kInt64).device(device));
}

double ExactSums::factor_of(std::size_t target) const {
  return is_gradient(target) ? loss_scale_ : 1.0 / static_cast<double>(counts_[kMicroBatches]);
}

std::vector<ExactSums::Parts> ExactSums::parts_of(const std::vector<Addends>& micro_batches) const {
  std::vector<Parts> all(targets_.size());
  for (const auto& micro_batch : micro_batches) {
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      const auto& tensor =
          is_gradient(i) ? micro_batch.gradients[i] : micro_batch.statistics[i - gradients_];
      auto& parts = all[i];
      if (tensor.defined()) parts.tensors.push_back(laid_out_as(targets_[i].like, tensor));
      if (!is_gradient(i) || micro_batch.products.empty()) continue;
      const auto& products = micro_batch.products[i];
      parts.products.insert(parts.products.end(), products.begin(), products.end());
    }
  }
  return all;
}

void ExactSums::add_counts(const std::vector<Parts>& parts,
                           const std::vector<Addends>& micro_batches) {
  if (!holds_any_) std::fill(counts_.begin(), counts_.end(), 0);
  counts_[kMicroBatches] += std::ssize(micro_batches);
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    addends(i) += std::ssize(parts[i].tensors) + std::ssize(parts[i].products);
  }
}

void ExactSums::add_to_sum(std::size_t index, const Parts& parts) {
  const auto& target = targets_[index];
  const double divisor = is_gradient(index) ? loss_scale_ : 1.0;
  auto sum = sums_.narrow(0, target.begin, target.like.numel());
  bool fresh = !holds_any_;
  if (!parts.products.empty()) {
    bad(index) += static_cast<std::int64_t>(!add_products_in_fixed_point(
        target.form, parts.products, divisor, fresh, sum.data_ptr<std::int64_t>(), 1.0, nullptr));
    fresh = false;
  }
  const auto& tensors = parts.tensors;
  if (!tensors.empty() && is_plain(tensors.front())) {
    std::atomic<std::int64_t> outside = 0;
    for_blocks(tensors, sum.numel(), [&](std::int64_t begin, std::int64_t count, const auto& from) {
      outside += static_cast<std::int64_t>(!add_in_fixed_point(
          target.form, from, divisor, count, fresh, sum.data_ptr<std::int64_t>() + begin));
    });
    bad(index) += outside;
    return;
  }
  if (fresh) sum.zero_();
  for (const auto& tensor : tensors) {
    const auto numbers = elements_of(tensor).to(torch::kDouble) / divisor;
    bad(index) += numbers.abs().le(target.form.limit).logical_not().sum().item<std::int64_t>();
    sum += (numbers / target.form.step).round().to(torch::kInt64);
  }
}

void ExactSums::add(const std::vector<Addends>& micro_batches, double loss_scale) {
  const torch::NoGradGuard no_grad;
  loss_scale_ = loss_scale;
  const auto parts = parts_of(micro_batches);
  add_counts(parts, micro_batches);
  for (std::size_t i = 0; i < targets_.size(); ++i) add_to_sum(i, parts[i]);
  holds_any_ = true;
}

ExactSums::Totals ExactSums::finish(const std::vector<Addends>& micro_batches, double loss_scale,
                                    const ProcessGroup& group) {
  const torch::NoGradGuard no_grad;
  loss_scale_ = loss_scale;
  const auto parts = parts_of(micro_batches);
  const auto is_one_kind = [](const Parts& each) {
    return each.products.empty() || (each.tensors.empty() && is_plain(each.products.front().input));
  };
  const bool alone = group.world_size() == 1 && !holds_any_ &&
                     std::ranges::all_of(parts, is_one_kind) &&
                     std::ranges::all_of(targets_, is_plain, &Target::like);
  const auto products = exchanged(parts, group);
  add_counts(parts, micro_batches);
  Tensors rows(targets_.size());
  if (!alone) {
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      if (products[i].empty()) {
        add_to_sum(i, parts[i]);
      } else {
        rows[i] = multiply_rows(i, products[i], group);
      }
    }
    all_reduce_sums(rows, group);
  }
  clear();
  // A parameter may have more than one addend per micro-batch.
  auto most = counts_[kMicroBatches];
  for (std::size_t i = 0; i < targets_.size(); ++i) most = std::max(most, addends(i));
  if (most > FixedPoint::kMaxAddends) {
    throw UsageError::out_of_range("micro-batches of one step", most,
                                   "at most " + std::to_string(FixedPoint::kMaxAddends),
                                   "use larger micro-batches, or fewer accumulation steps");
  }
  Tensors totals(targets_.size());
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    if (addends(i) == 0) continue;
    if (rows[i].defined()) {
      totals[i] = gather_rows(rows[i], targets_[i].like.size(0), group);
    } else {
      totals[i] = alone ? finish_alone(i, parts[i]) : decoded(i);
    }
  }
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    if (bad(i) > 0 && totals[i].defined()) totals[i].fill_(kNan);
  }
  const auto statistics = totals.begin() + static_cast<std::ptrdiff_t>(gradients_);
  return {{totals.begin(), statistics}, {statistics, totals.end()}};
}

std::vector<Products> ExactSums::exchanged(const std::vector<Parts>& parts,
                                           const ProcessGroup& group) const {
  if (group.world_size() == 1) return std::vector<Products>(targets_.size());
  Tensors weights;
  std::vector<std::optional<Products>> own(targets_.size());
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    weights.push_back(targets_[i].like);
    if (!holds_any_ && parts[i].tensors.empty()) own[i] = parts[i].products;
  }
  return exchange_products(weights, own, group);
}

torch::Tensor ExactSums::multiply_rows(std::size_t index, const Products& products,
                                       const ProcessGroup& group) {
  const auto& weight = targets_[index].like;
  const RowsOfRank own(weight, group);
  auto rows = torch::empty({own.most, weight.size(1)}, weight.options());
  rows.narrow(0, own.count, own.most - own.count).zero_();
  if (own.count > 0) write_products(index, own.of(products), rows.data_ptr<float>());
  return rows;
}

// The integers of a tile never leave the registers.
void ExactSums::write_products(std::size_t index, const Products& products, float* total) {
  bad(index) += static_cast<std::int64_t>(
      !add_products_in_fixed_point(targets_[index].form, products, loss_scale_, /*fresh=*/true,
                                   /*sum=*/nullptr, factor_of(index), total));
}

void ExactSums::all_reduce_sums(const Tensors& rows, const ProcessGroup& group) {
  const std::int64_t end = sums_.size(0);
  auto counts = sums_.narrow(0, end - std::ssize(counts_), std::ssize(counts_));
  counts.copy_(torch::tensor(counts_, torch::kInt64));
  std::int64_t begin = 0;
  const auto reduce_until = [&](std::int64_t next) {
    auto sums = sums_.narrow(0, begin, next - begin);
    if (next > begin) group.all_reduce(sums);
  };
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    if (!rows[i].defined()) continue;
    reduce_until(targets_[i].begin);
    begin = targets_[i].begin + targets_[i].like.numel();
  }
  reduce_until(end);
  const auto totals = counts.cpu();
  std::copy_n(totals.const_data_ptr<std::int64_t>(), counts_.size(), counts_.begin());
}

torch::Tensor ExactSums::decoded(std::size_t index) const {
  const auto& target = targets_[index];
  const auto sum = sums_.narrow(0, target.begin, target.like.numel());
  auto total = torch::empty_like(target.like);
  if (!is_plain(total)) {
    elements_of(total).copy_(sum.to(torch::kDouble) * (target.form.step * factor_of(index)));
    return total;
  }
  at::parallel_for(0, sum.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    from_fixed_point(target.form, sum.const_data_ptr<std::int64_t>() + begin, factor_of(index),
                     end - begin, total.data_ptr<float>() + begin);
  });
  return total;
}

// Nothing to exchange and nothing from before: the integers of a block never leave the cache.
torch::Tensor ExactSums::finish_alone(std::size_t index, const Parts& parts) {
  const auto& target = targets_[index];
  const double divisor = is_gradient(index) ? loss_scale_ : 1.0;
  const double factor = factor_of(index);
  auto total = torch::empty_like(target.like);
  if (!parts.products.empty()) {
    write_products(index, parts.products, total.data_ptr<float>());
    return total;
  }
  std::atomic<std::int64_t> outside = 0;
  for_blocks(
      parts.tensors, target.like.numel(),
      [&](std::int64_t begin, std::int64_t count, const auto& from) {
        std::array<std::int64_t, kBlock> sum = {};
        outside += static_cast<std::int64_t>(
            !add_in_fixed_point(target.form, from, divisor, count, /*fresh=*/true, sum.data()));
        from_fixed_point(target.form, sum.data(), factor, count, total.data_ptr<float>() + begin);
      });
  bad(index) += outside;
  return total;
}

}  // namespace ladder
