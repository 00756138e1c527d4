// SPDX-License-Identifier: Apache-2.0
#include "ladder/data/batch_sampler_shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/core/text.h"

namespace ladder {
namespace {

constexpr const char* kName = "BatchSamplerShard";

void require_equal_batches(const BatchSampler& whole, const std::vector<BatchIndices>& batches) {
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const std::int64_t count = std::ssize(batches[i].indices);
    const bool may_be_short = i + 1 == batches.size() && !whole.drop_last();
    if (count == whole.batch_size() || (may_be_short && 0 < count && count < whole.batch_size())) {
      continue;
    }
    throw UsageError::out_of_range(fmt::format("{} batch {}", kName, i), count,
                                   fmt::format("{} samples", whole.batch_size()),
                                   "loader mode global divides batches of any size");
  }
}

}  // namespace

BatchSamplerShard::BatchSamplerShard(std::shared_ptr<const BatchSampler> whole,
                                     BatchSamplerShardOptions options)
    : BatchSampler(*whole), whole_(std::move(whole)), options_(options) {
  require_rank(kName, options.rank, options.world_size);
  require_whole(kName, whole_->world_size());
  if (!options.split_batches || batch_size() % options.world_size == 0) return;
  throw UsageError::conflict(
      kName,
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

}  // namespace ladder
