// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ladder/data/data_loader.h"
#include "ladder/data/sampler.h"

namespace ladder {

// The first batches of each epoch of another sampler, to try a program out in less time.
class LimitedBatchSampler : public BatchSampler {
 public:
  // Takes min(batches, whole->size()) of them; `batches` >= 1, else UsageError.
  LimitedBatchSampler(std::shared_ptr<const BatchSampler> whole, std::int64_t batches);

  std::int64_t size() const override { return batches_; }
  std::vector<BatchIndices> plan(std::int64_t epoch) const override;
  std::int64_t world_size() const override { return whole_->world_size(); }
  std::int64_t whole_size() const override { return samples_; }
  bool evaluation_only() const override { return whole_->evaluation_only(); }

 private:
  std::shared_ptr<const BatchSampler> whole_;
  std::int64_t batches_;
  std::int64_t samples_ = 0;
};

// `loader` with the first batches of each of its epochs.
DataLoader first_batches(const DataLoader& loader, std::int64_t batches);

}  // namespace ladder
