// SPDX-License-Identifier: Apache-2.0
#include "ladder/data/sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/core/largest_counts.h"

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

std::shared_ptr<const Sampler> make_sampler(std::int64_t size, bool shuffle, std::uint64_t seed) {
  if (shuffle) return std::make_shared<RandomSampler>(size, seed);
  return std::make_shared<SequentialSampler>(size);
}

std::int64_t Sampler::whole_size() const {
  std::int64_t sum = 0;
  for (std::int64_t rank = 0; rank < world_size(); ++rank) sum += part_size(rank);
  return sum;
}

BatchSampler::BatchSampler(std::shared_ptr<const Sampler> sampler, std::int64_t batch_size,
                           bool drop_last)
    : sampler_(std::move(sampler)), batch_size_(batch_size), drop_last_(drop_last) {
  require_between("batch_size", batch_size, 1, kMaxSamplesPerBatch,
                  fmt::format("such as {}", kDefaultBatchSize));
  if (drop_last && sampler_->evaluation_only()) {
    throw UsageError::conflict("drop_last", "an evaluation sampler must not drop samples",
                               "leave drop_last off, so that every sample is counted");
  }
}

std::int64_t BatchSampler::size() const {
  const std::int64_t whole = sampler_->size() / batch_size_;
  return drop_last_ || sampler_->size() % batch_size_ == 0 ? whole : whole + 1;
}

std::vector<BatchIndices> BatchSampler::batches_of(std::int64_t epoch) const {
  const auto order = sampler_->order(epoch);
  std::vector<BatchIndices> batches(static_cast<std::size_t>(size()));
  std::int64_t begin = 0;
  for (auto& batch : batches) {
    const std::int64_t end = std::min(begin + batch_size_, sampler_->size());
    batch.indices.assign(order.begin() + begin, order.begin() + end);
    for (std::int64_t k = begin; k < end; ++k) batch.positions.push_back(sampler_->position(k));
    batch.global_size = global_size(begin);
    batch.world_size = sampler_->world_size();
    begin = end;
  }
  return batches;
}

// Samples over all ranks of the batch that begins with sample `begin` on each of them.
std::int64_t BatchSampler::global_size(std::int64_t begin) const {
  std::int64_t sum = 0;
  for (std::int64_t rank = 0; rank < sampler_->world_size(); ++rank) {
    const std::int64_t left = sampler_->part_size(rank) - begin;
    const std::int64_t count = std::clamp<std::int64_t>(left, 0, batch_size_);
    if (count == batch_size_ || !drop_last_) sum += count;
  }
  return sum;
}

LimitedBatchSampler::LimitedBatchSampler(std::shared_ptr<const BatchSampler> whole,
                                         std::int64_t batches)
    : BatchSampler(make_sampler(whole->whole_size(), /*shuffle=*/false, /*seed=*/0),
                   whole->batch_size(), whole->drop_last()),
      whole_(std::move(whole)),
      batches_(std::min(batches, whole_->size())) {
  require_at_least("limit_batches", batches, 1, "use the loader itself for all batches");
  for (const auto& batch : batches_of(0)) samples_ += batch.global_size;
  samples_ = std::min(samples_, whole_->whole_size());  // without repeated samples
}

std::vector<BatchIndices> LimitedBatchSampler::batches_of(std::int64_t epoch) const {
  auto batches = whole_->batches_of(epoch);
  batches.resize(static_cast<std::size_t>(batches_));
  return batches;
}

void require_rank(std::string_view where, std::int64_t rank, std::int64_t world_size) {
  require_between(fmt::format("{} world_size", where), world_size, 1, kLargestWorldSize,
                  "take it from ProcessGroup::world_size()");
  require_between(fmt::format("{} rank", where), rank, 0, world_size - 1,
                  fmt::format("{} ranks count from 0", world_size));
}

void require_whole(std::string_view where, std::int64_t world_size) {
  if (world_size == 1) return;
  throw UsageError::conflict(
      where, "its sampler gives one rank's part, and it would divide that again",
      "give it the whole order, such as a RandomSampler, or the batches of all ranks");
}

}  // namespace ladder
