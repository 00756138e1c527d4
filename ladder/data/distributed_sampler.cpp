// SPDX-License-Identifier: Apache-2.0
#include "ladder/data/distributed_sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/core/largest_counts.h"
#include "ladder/core/text.h"

namespace ladder {
namespace {

constexpr const char* kShard = "BatchSamplerShard";

void require_equal_batches(const BatchSampler& whole, const std::vector<BatchIndices>& batches) {
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const std::int64_t count = std::ssize(batches[i].indices);
    const bool may_be_short = i + 1 == batches.size() && !whole.drop_last();
    if (count == whole.batch_size() || (may_be_short && 0 < count && count < whole.batch_size())) {
      continue;
    }
    throw UsageError::out_of_range(fmt::format("{} batch {}", kShard, i), count,
                                   fmt::format("{} samples", whole.batch_size()),
                                   "loader mode global divides batches of any size");
  }
}

}  // namespace

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
  require_between("ShardedBatchSampler micro_batch", micro_batch_, 0, kMaxSamplesPerBatch,
                  "0 divides batches of any size");
}

std::vector<BatchIndices> ShardedBatchSampler::batches_of(std::int64_t epoch) const {
  auto slices = whole_->batches_of(epoch);
  for (auto& batch : slices) batch = slice(batch);
  return slices;
}

BatchIndices ShardedBatchSampler::slice(const BatchIndices& whole) const {
  const std::int64_t global_size = std::ssize(whole.indices);
  const std::int64_t unit = std::max<std::int64_t>(1, micro_batch_);
  const std::int64_t units = ceil_div(global_size, unit);
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

BatchSamplerShard::BatchSamplerShard(std::shared_ptr<const BatchSampler> whole,
                                     BatchSamplerShardOptions options)
    : BatchSampler(*whole), whole_(std::move(whole)), options_(options) {
  require_rank(kShard, options.rank, options.world_size);
  require_whole(kShard, whole_->world_size());
  if (!options.split_batches || batch_size() % options.world_size == 0) return;
  throw UsageError::conflict(
      kShard,
      fmt::format("split_batches cannot cut {} samples into {} equal parts", batch_size(),
                  options.world_size),
      fmt::format("choose a batch size that {} divides, or loader mode global, which cuts batches "
                  "of any size",
                  options.world_size));
}

std::int64_t BatchSamplerShard::size() const {
  const std::int64_t batches = options_.split_batches ? 1 : options_.world_size;
  return drop_last() ? whole_->size() / batches : ceil_div(whole_->size(), batches);
}

std::int64_t BatchSamplerShard::round_size() const {
  return options_.split_batches ? batch_size() : batch_size() * options_.world_size;
}

std::vector<BatchIndices> BatchSamplerShard::batches_of(std::int64_t epoch) const {
  auto batches = whole_->batches_of(epoch);
  if (options_.world_size == 1) return batches;
  require_equal_batches(*whole_, batches);
  BatchIndices all;
  for (const auto& batch : batches) {
    all.indices.insert(all.indices.end(), batch.indices.begin(), batch.indices.end());
    all.positions.insert(all.positions.end(), batch.positions.begin(), batch.positions.end());
  }
  std::vector<BatchIndices> parts;
  for (std::int64_t round = 0; round < size(); ++round) parts.push_back(part_of_round(all, round));
  return parts;
}

BatchIndices BatchSamplerShard::part_of_round(const BatchIndices& order, std::int64_t round) const {
  const std::int64_t samples = std::ssize(order.indices);
  const std::int64_t begin = round * round_size();
  const std::int64_t count = std::min(round_size(), samples - begin);
  const std::int64_t ranks = options_.world_size;
  std::int64_t part = round_size() / ranks;  // samples per rank; the last ranks may get fewer
  std::int64_t padded = options_.even_batches ? round_size() : count;  // over all ranks
  if (options_.dispatch_batches) {
    part = ceil_div(count, ranks);
    padded = std::min(part * ranks, count + std::min(ranks, samples));
  }
  BatchIndices batch{.global_size = padded, .world_size = ranks};
  const std::int64_t first = std::min(options_.rank * part, padded);
  const std::int64_t end = std::min(first + part, padded);
  for (std::int64_t k = begin + first; k < begin + end; ++k) {
    const auto i = static_cast<std::size_t>(k % samples);
    batch.indices.push_back(order.indices[i]);
    batch.positions.push_back(k < samples ? order.positions[i] : whole_size() + k - samples);
  }
  return batch;
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
