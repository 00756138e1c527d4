// SPDX-License-Identifier: Apache-2.0
#include "ladder/data/distributed_sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "ladder/core/error.h"

namespace ladder {
namespace {

void require_rank(std::string_view who, std::int64_t rank, std::int64_t world_size) {
  if (world_size < 1) {
    throw UsageError::out_of_range(fmt::format("{} world_size", who), world_size, "a number >= 1");
  }
  if (rank < 0 || rank >= world_size) {
    throw UsageError::out_of_range(fmt::format("{} rank", who), rank,
                                   fmt::format("0 to {}", world_size - 1),
                                   fmt::format("{} ranks count from 0", world_size));
  }
}

std::shared_ptr<const Sampler> whole_order(std::int64_t size,
                                           const DistributedSamplerOptions& options) {
  if (options.shuffle) return std::make_shared<RandomSampler>(size, options.seed);
  return std::make_shared<SequentialSampler>(size);
}

}  // namespace

DistributedSampler::DistributedSampler(std::int64_t size, DistributedSamplerOptions options)
    : options_(options), whole_(whole_order(size, options)) {
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
    : BatchSampler(sampler, options.batch_size, options.drop_last), options_(options) {
  require_rank("ShardedBatchSampler", options.rank, options.world_size);
  if (sampler->world_size() > 1) {
    throw UsageError::conflict("ShardedBatchSampler",
                               "its sampler gives one rank's part, and it would divide that again",
                               "give it the whole order, such as a RandomSampler");
  }
}

std::vector<BatchPlan> ShardedBatchSampler::plan(std::int64_t epoch) const {
  auto plans = BatchSampler::plan(epoch);
  for (auto& plan : plans) plan = slice(plan);
  return plans;
}

BatchPlan ShardedBatchSampler::slice(const BatchPlan& whole) const {
  const std::int64_t count = whole.global_size / options_.world_size;
  const std::int64_t remainder = whole.global_size % options_.world_size;
  const std::int64_t begin = options_.rank * count + std::min(options_.rank, remainder);
  const std::int64_t end = begin + count + (options_.rank < remainder ? 1 : 0);
  const auto cut = [&](const std::vector<std::int64_t>& all) {
    return std::vector<std::int64_t>(all.begin() + begin, all.begin() + end);
  };
  return {.indices = cut(whole.indices),
          .positions = cut(whole.positions),
          .global_size = whole.global_size,
          .world_size = options_.world_size};
}

std::shared_ptr<const BatchSampler> divide_batches(std::int64_t size,
                                                   DivideBatchesOptions options) {
  if (options.mode == BatchMode::kPerDevice) {
    const auto part = std::make_shared<DistributedSampler>(
        size, DistributedSamplerOptions{
                  .world_size = options.world_size, .rank = options.rank, .seed = options.seed});
    return std::make_shared<BatchSampler>(part, options.batch_size, /*drop_last=*/false);
  }
  return std::make_shared<ShardedBatchSampler>(
      std::make_shared<RandomSampler>(size, options.seed),
      ShardedBatchSamplerOptions{.batch_size = options.batch_size,
                                 .rank = options.rank,
                                 .world_size = options.world_size});
}

}  // namespace ladder
