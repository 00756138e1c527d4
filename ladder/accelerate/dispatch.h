// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ladder/comm/process_group.h"
#include "ladder/core/tensor_form.h"
#include "ladder/data/data_loader.h"
#include "ladder/data/dataset.h"
#include "ladder/data/sampler.h"

namespace ladder {

// Rank 0 reads the batches of all ranks and broadcasts them; each rank keeps its rows. The data set
// is in memory once, not once per rank. In return every rank receives every whole batch, and all
// wait for one reader.

// A data set that only rank 0 holds, on another rank: size and description, no samples.
class RemoteDataset : public Dataset {
 public:
  RemoteDataset(std::int64_t size, std::string description)
      : size_(size), description_(std::move(description)) {}

  std::int64_t size() const override { return size_; }
  std::string description() const override { return description_; }
  // Throws UsageError.
  Batch get_batch(std::span<const std::int64_t> indices) const override;

 private:
  std::int64_t size_;
  std::string description_;
};

// Calls `make` on rank 0 and returns its data set; on other ranks, a RemoteDataset of its size and
// description. A collective.
std::shared_ptr<const Dataset> dataset_of_main_process(
    const std::function<std::shared_ptr<const Dataset>()>& make, const ProcessGroup& group);

// The batches of all ranks: batch k is the k-th batches of all `parts`, in rank order.
class ConcatBatchSampler : public BatchSampler {
 public:
  explicit ConcatBatchSampler(std::vector<std::shared_ptr<const BatchSampler>> parts);

  std::int64_t size() const override { return parts_.front()->size(); }
  std::vector<BatchIndices> batches_of(std::int64_t epoch) const override;

 private:
  std::vector<std::shared_ptr<const BatchSampler>> parts_;
};

// One pass: rank 0 reads the joined batches, all ranks receive them and keep their own rows.
class BatchDispatcher {
 public:
  // `joined` is the loader over a ConcatBatchSampler of `parts`. Only rank 0 reads it.
  // Batches travel between the devices of the ranks: `device` is this rank's.
  BatchDispatcher(const DataLoader& joined,
                  const std::vector<std::shared_ptr<const BatchSampler>>& parts, ProcessGroup group,
                  const torch::Device& device, std::int64_t first_batch);

  // This rank's part of the next batch, on its device; nothing at the end. A collective.
  std::optional<Batch> next();

 private:
  void share_layout();

  ProcessGroup group_;
  torch::Device device_;
  std::int64_t epoch_;
  std::vector<std::vector<BatchIndices>> plans_;            // [rank][batch]
  std::optional<DataLoader::Iterator> reader_;              // on rank 0
  std::vector<std::pair<std::string, TensorForm>> layout_;  // by input; empty = the targets
  std::size_t next_;
};

}  // namespace ladder
