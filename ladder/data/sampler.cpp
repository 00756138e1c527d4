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

std::int64_t Sampler::whole_size() const {
  std::int64_t sum = 0;
  for (std::int64_t rank = 0; rank < world_size(); ++rank) sum += part_size(rank);
  return sum;
}

BatchSampler::BatchSampler(std::shared_ptr<const Sampler> sampler, std::int64_t batch_size,
                           bool drop_last)
    : sampler_(std::move(sampler)), batch_size_(batch_size), drop_last_(drop_last) {
  if (batch_size <= 0) {
    throw UsageError::out_of_range("batch size", batch_size, "a number > 0");
  }
  if (drop_last && sampler_->evaluation_only()) {
    throw UsageError::conflict("drop_last", "a sampler for evaluation must leave nothing out",
                               "leave drop_last off, so that every sample is counted");
  }
}

std::int64_t BatchSampler::size() const {
  const std::int64_t whole = sampler_->size() / batch_size_;
  return drop_last_ || sampler_->size() % batch_size_ == 0 ? whole : whole + 1;
}

std::vector<BatchIndices> BatchSampler::plan(std::int64_t epoch) const {
  const auto order = sampler_->order(epoch);
  std::vector<BatchIndices> plans(static_cast<std::size_t>(size()));
  std::int64_t begin = 0;
  for (auto& plan : plans) {
    const std::int64_t end = std::min(begin + batch_size_, sampler_->size());
    plan.indices.assign(order.begin() + begin, order.begin() + end);
    for (std::int64_t k = begin; k < end; ++k) plan.positions.push_back(sampler_->position(k));
    plan.global_size = global_size(begin);
    plan.world_size = sampler_->world_size();
    begin = end;
  }
  return plans;
}

// Samples over all ranks of the batch that begins on each of them with sample `begin`.
std::int64_t BatchSampler::global_size(std::int64_t begin) const {
  std::int64_t sum = 0;
  for (std::int64_t rank = 0; rank < sampler_->world_size(); ++rank) {
    const std::int64_t left = sampler_->part_size(rank) - begin;
    const std::int64_t count = std::clamp<std::int64_t>(left, 0, batch_size_);
    if (count == batch_size_ || !drop_last_) sum += count;
  }
  return sum;
}

}  // namespace ladder
