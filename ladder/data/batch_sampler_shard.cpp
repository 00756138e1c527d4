// SPDX-License-Identifier: Apache-2.0
#include "ladder/data/batch_sampler_shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/core/numbers.h"
#include "ladder/data/require_rank.h"

namespace ladder {
namespace {

constexpr const char* kWho = "BatchSamplerShard";

void require_equal_parts(const BatchSampler& whole, const BatchSamplerShardOptions& options) {
  if (!options.split_batches || whole.batch_size() % options.world_size == 0) return;
  throw UsageError::conflict(
      kWho,
      fmt::format("split_batches cannot cut {} samples into {} equal parts", whole.batch_size(),
                  options.world_size),
      fmt::format("choose a batch size that {} divides, or loader mode global, which cuts batches "
                  "of any size",
                  options.world_size));
}

void require_equal_batches(const BatchSampler& whole, const std::vector<BatchIndices>& batches) {
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const std::int64_t count = std::ssize(batches[i].indices);
    const bool may_be_short = i + 1 == batches.size() && !whole.drop_last();
    if (count == whole.batch_size() || (may_be_short && 0 < count && count < whole.batch_size())) {
      continue;
    }
    throw UsageError::out_of_range(fmt::format("{} batch {}", kWho, i), count,
                                   fmt::format("{} samples", whole.batch_size()),
                                   "loader mode global divides batches of any size");
  }
}

BatchIndices joined(const std::vector<BatchIndices>& batches) {
  BatchIndices all;
  for (const auto& batch : batches) {
    all.indices.insert(all.indices.end(), batch.indices.begin(), batch.indices.end());
    all.positions.insert(all.positions.end(), batch.positions.begin(), batch.positions.end());
  }
  return all;
}

}  // namespace

BatchSamplerShard::BatchSamplerShard(std::shared_ptr<const BatchSampler> whole,
                                     BatchSamplerShardOptions options)
    : BatchSampler(*whole), whole_(std::move(whole)), options_(options) {
  require_rank(kWho, options.rank, options.world_size);
  require_whole(kWho, whole_->world_size());
  require_equal_parts(*whole_, options);
}

std::int64_t BatchSamplerShard::size() const {
  const std::int64_t batches = options_.split_batches ? 1 : options_.world_size;
  return drop_last() ? whole_->size() / batches : ceil_div(whole_->size(), batches);
}

std::int64_t BatchSamplerShard::round_size() const {
  return options_.split_batches ? batch_size() : batch_size() * options_.world_size;
}

std::vector<BatchIndices> BatchSamplerShard::plan(std::int64_t epoch) const {
  auto batches = whole_->plan(epoch);
  if (options_.world_size == 1) return batches;
  require_equal_batches(*whole_, batches);
  const BatchIndices order = joined(batches);
  std::vector<BatchIndices> plans(static_cast<std::size_t>(size()));
  std::int64_t round = 0;
  for (auto& plan : plans) plan = part_of_round(order, round++);
  return plans;
}

BatchIndices BatchSamplerShard::part_of_round(const BatchIndices& order, std::int64_t round) const {
  const std::int64_t samples = std::ssize(order.indices);
  const std::int64_t begin = round * round_size();
  const Cut cut = cut_of(std::min(round_size(), samples - begin), samples);
  BatchIndices plan{.global_size = cut.filled_up, .world_size = options_.world_size};
  const std::int64_t first = std::min(options_.rank * cut.part, cut.filled_up);
  const std::int64_t end = std::min(first + cut.part, cut.filled_up);
  for (std::int64_t k = begin + first; k < begin + end; ++k) {
    const auto place = static_cast<std::size_t>(k % samples);
    plan.indices.push_back(order.indices[place]);
    plan.positions.push_back(k < samples ? order.positions[place] : whole_size() + k - samples);
  }
  return plan;
}

BatchSamplerShard::Cut BatchSamplerShard::cut_of(std::int64_t count, std::int64_t samples) const {
  const std::int64_t ranks = options_.world_size;
  if (options_.dispatch_batches) {
    const std::int64_t part = ceil_div(count, ranks);
    return {.part = part, .filled_up = std::min(part * ranks, count + std::min(ranks, samples))};
  }
  return {.part = round_size() / ranks, .filled_up = options_.even_batches ? round_size() : count};
}

}  // namespace ladder
