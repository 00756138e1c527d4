// SPDX-License-Identifier: Apache-2.0
#include "ladder/data/distributed_sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/core/largest_counts.h"

namespace ladder {

DistributedSampler::DistributedSampler(std::int64_t size, DistributedSamplerOptions options)
    : options_(options), whole_(make_sampler(size, options.shuffle, options.seed)) {
  require_rank("DistributedSampler", options.rank, options.world_size);
}

std::int64_t DistributedSampler::size() const {
  const std::int64_t whole = whole_->size();
  const std::int64_t rounded = options_.drop_last ? whole : whole + options_.world_size - 1;
  return rounded / options_.world_size;
}

std::int64_t DistributedSampler::position(std::int64_t k) const {
  return options_.rank + k * options_.world_size;
}

std::vector<std::int64_t> DistributedSampler::order(std::int64_t epoch) const {
  const auto whole = whole_->order(epoch);
  std::vector<std::int64_t> part;
  for (std::int64_t k = 0; k < size(); ++k) {
    part.push_back(whole[static_cast<std::size_t>(position(k)) % whole.size()]);
  }
  return part;
}

ExactEvalSampler::ExactEvalSampler(std::int64_t size, ExactEvalSamplerOptions options)
    : size_(size), options_(options) {
  require_rank("ExactEvalSampler", options.rank, options.world_size);
}

std::int64_t ExactEvalSampler::part_size(std::int64_t rank) const {
  return size_ / options_.world_size + (rank < size_ % options_.world_size ? 1 : 0);
}

std::int64_t ExactEvalSampler::position(std::int64_t k) const {
  return options_.rank + k * options_.world_size;
}

std::vector<std::int64_t> ExactEvalSampler::order(std::int64_t /*epoch*/) const {
  std::vector<std::int64_t> part;
  for (std::int64_t k = 0; k < size(); ++k) part.push_back(position(k));
  return part;
}

ShardedBatchSampler::ShardedBatchSampler(std::shared_ptr<const Sampler> sampler,
                                         ShardedBatchSamplerOptions options)
    : ShardedBatchSampler(std::make_shared<BatchSampler>(
                              std::move(sampler), options.batch_size.value_or(kDefaultBatchSize),
                              options.drop_last),
                          options.rank, options.world_size, options.micro_batch) {}

ShardedBatchSampler::ShardedBatchSampler(std::shared_ptr<const BatchSampler> whole,
                                         ShardedBatchSamplerOptions options)
    : ShardedBatchSampler(std::move(whole), options.rank, options.world_size, options.micro_batch) {
  if (!options.batch_size.has_value() && !options.drop_last) return;
  throw UsageError::conflict(
      "ShardedBatchSampler",
      fmt::format("{} together with a batch sampler, which determines the batches",
                  options.batch_size.has_value() ? "batch_size" : "drop_last"),
      "set it in that batch sampler");
}

ShardedBatchSampler::ShardedBatchSampler(std::shared_ptr<const BatchSampler> whole,
                                         std::int64_t rank, std::int64_t world_size,
                                         std::int64_t micro_batch)
    : BatchSampler(*whole),
      whole_(std::move(whole)),
      rank_(rank),
      world_size_(world_size),
      micro_batch_(micro_batch) {
  require_rank("ShardedBatchSampler", rank_, world_size_);
  require_whole("ShardedBatchSampler", whole_->world_size());
  if (micro_batch_ < 0 || micro_batch_ > kMostSamplesPerBatch) {
    throw UsageError::out_of_range("ShardedBatchSampler micro_batch", micro_batch_,
                                   fmt::format("0 to {}", kMostSamplesPerBatch),
                                   "0 divides batches of any size");
  }
}

std::vector<BatchIndices> ShardedBatchSampler::batches_of(std::int64_t epoch) const {
  auto batches = whole_->batches_of(epoch);
  for (auto& batch : batches) batch = slice(batch);
  return batches;
}

BatchIndices ShardedBatchSampler::slice(const BatchIndices& whole) const {
  const std::int64_t global_size = std::ssize(whole.indices);
  const std::int64_t unit = std::max<std::int64_t>(1, micro_batch_);
  const std::int64_t units = (global_size + unit - 1) / unit;
  // The sample before which the part of a rank begins.
  const auto first_of = [&](std::int64_t rank) {
    const auto before = rank * (units / world_size_) + std::min(rank, units % world_size_);
    return std::min(global_size, before * unit);
  };
  const std::int64_t begin = first_of(rank_);
  const std::int64_t end = first_of(rank_ + 1);
  const auto cut = [&](const std::vector<std::int64_t>& all) {
    return std::vector<std::int64_t>(all.begin() + begin, all.begin() + end);
  };
  return {.indices = cut(whole.indices),
          .positions = cut(whole.positions),
          .global_size = global_size,
          .world_size = world_size_,
          .micro_batch = micro_batch_};
}

std::shared_ptr<const BatchSampler> divide_batches(std::int64_t size,
                                                   DivideBatchesOptions options) {
  if (options.mode == BatchMode::kPerDevice) {
    if (options.micro_batch > 0) {
      throw UsageError::conflict("divide_batches", "micro-batches together with per-device batches",
                                 "use the global mode, in which the ranks divide each batch");
    }
    const auto part = std::make_shared<DistributedSampler>(
        size, DistributedSamplerOptions{
                  .world_size = options.world_size, .rank = options.rank, .seed = options.seed});
    return std::make_shared<BatchSampler>(part, options.batch_size, /*drop_last=*/false);
  }
  return std::make_shared<ShardedBatchSampler>(
      std::make_shared<RandomSampler>(size, options.seed),
      ShardedBatchSamplerOptions{.batch_size = options.batch_size,
                                 .rank = options.rank,
                                 .world_size = options.world_size,
                                 .micro_batch = options.micro_batch});
}

}  // namespace ladder
