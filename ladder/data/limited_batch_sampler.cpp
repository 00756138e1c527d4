// SPDX-License-Identifier: Apache-2.0
#include "ladder/data/limited_batch_sampler.h"

#include <algorithm>
#include <utility>

#include "ladder/core/error.h"

namespace ladder {

LimitedBatchSampler::LimitedBatchSampler(std::shared_ptr<const BatchSampler> whole,
                                         std::int64_t batches)
    : BatchSampler(std::make_shared<SequentialSampler>(whole->whole_size()), whole->batch_size(),
                   whole->drop_last()),
      whole_(std::move(whole)),
      batches_(std::min(batches, whole_->size())) {
  if (batches < 1) throw UsageError::out_of_range("first_batches", batches, "a number >= 1");
  for (const auto& batch : plan(0)) samples_ += batch.global_size;
}

std::vector<BatchIndices> LimitedBatchSampler::plan(std::int64_t epoch) const {
  auto plans = whole_->plan(epoch);
  plans.resize(static_cast<std::size_t>(batches_));
  return plans;
}

DataLoader first_batches(const DataLoader& loader, std::int64_t batches) {
  return DataLoader(
      loader.shared_dataset(),
      {.batch_sampler = std::make_shared<LimitedBatchSampler>(loader.batch_sampler(), batches),
       .num_workers = loader.options().num_workers,
       .pin_memory = loader.options().pin_memory,
       .transform = loader.options().transform});
}

}  // namespace ladder
