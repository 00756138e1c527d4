// SPDX-License-Identifier: Apache-2.0
#include "ladder/data/sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "ladder/core/error.h"

namespace ladder {

std::vector<std::int64_t> SequentialSampler::order(std::int64_t /*epoch*/) const {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(size_));
  std::iota(indices.begin(), indices.end(), std::int64_t{0});
  return indices;
}

std::vector<std::int64_t> RandomSampler::order(std::int64_t epoch) const {
  auto generator =
      at::make_generator<at::CPUGeneratorImpl>(seed_ + static_cast<std::uint64_t>(epoch));
  const auto permutation = torch::randperm(size_, generator, torch::kInt64);
  const auto* first = permutation.const_data_ptr<std::int64_t>();
  return {first, first + size_};
}

BatchSampler::BatchSampler(std::shared_ptr<const Sampler> sampler, std::int64_t batch_size,
                           bool drop_last)
    : sampler_(std::move(sampler)), batch_size_(batch_size), drop_last_(drop_last) {
  if (batch_size <= 0) {
    throw UsageError::out_of_range("batch size", batch_size, "a number > 0");
  }
}

std::int64_t BatchSampler::size() const {
  const std::int64_t whole = sampler_->size() / batch_size_;
  return drop_last_ || sampler_->size() % batch_size_ == 0 ? whole : whole + 1;
}

std::vector<BatchPlan> BatchSampler::plan(std::int64_t epoch) const {
  const auto order = sampler_->order(epoch);
  std::vector<BatchPlan> plans(static_cast<std::size_t>(size()));
  std::int64_t position = 0;
  for (auto& plan : plans) {
    plan.global_size = std::min(batch_size_, sampler_->size() - position);
    plan.indices.assign(order.begin() + position, order.begin() + position + plan.global_size);
    plan.positions.resize(plan.indices.size());
    std::iota(plan.positions.begin(), plan.positions.end(), position);
    position += plan.global_size;
  }
  return plans;
}

}  // namespace ladder
