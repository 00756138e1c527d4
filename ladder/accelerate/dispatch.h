// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ladder/comm/process_group.h"
#include "ladder/data/data_loader.h"
#include "ladder/data/dataset.h"
#include "ladder/data/sampler.h"

namespace ladder {

// Reading on rank 0 alone: it makes each batch of all ranks and sends it, and the others take
// their rows. The memory of a data set is paid once, not once a rank; in return every batch
// travels, whole, to every rank, and all wait for one reader.

// Stands for a data set that only rank 0 holds: knows its size and description, has no samples.
class RemoteDataset : public Dataset {
 public:
  RemoteDataset(std::int64_t size, std::string description)
      : size_(size), description_(std::move(description)) {}

  std::int64_t size() const override { return size_; }
  std::string description() const override { return description_; }
  // Throws UsageError: this rank has nothing to read.
  Batch get_batch(std::span<const std::int64_t> indices) const override;

 private:
  std::int64_t size_;
  std::string description_;
};

// What `make` returns on rank 0, and a RemoteDataset like it on the others, where `make` is not
// called. A collective.
std::shared_ptr<const Dataset> dataset_of_main_process(
    const std::function<std::shared_ptr<const Dataset>()>& make, const ProcessGroup& group);

// The batches of all ranks: batch k is the k-th batches of all `parts`, in rank order.
class ConcatBatchSampler : public BatchSampler {
 public:
  explicit ConcatBatchSampler(std::vector<std::shared_ptr<const BatchSampler>> parts);

  std::int64_t size() const override { return parts_.front()->size(); }
  std::vector<BatchIndices> plan(std::int64_t epoch) const override;

 private:
  std::vector<std::shared_ptr<const BatchSampler>> parts_;
};

// One walk: rank 0 reads the joined batches, all ranks receive them and keep their own rows.
class BatchDispatcher {
 public:
  // `joined` is the loader over a ConcatBatchSampler of `parts`; read on rank 0 alone.
  BatchDispatcher(const DataLoader& joined,
                  const std::vector<std::shared_ptr<const BatchSampler>>& parts, ProcessGroup group,
                  std::int64_t first_batch);

  // This rank's part of the next batch, on the CPU; nothing at the end. A collective.
  std::optional<Batch> next();

 private:
  // Of one tensor of every batch.
  struct Layout {
    std::string name;  // of the input; empty = the targets
    torch::ScalarType dtype;
    std::vector<std::int64_t> row_shape;
  };

  void share_layout();
  torch::Tensor read(const std::string& name) const;

  ProcessGroup group_;
  std::int64_t epoch_;
  std::vector<std::vector<BatchIndices>> plans_;  // [rank][batch]
  std::optional<DataLoader::Iterator> reader_;    // on rank 0
  std::vector<Layout> layout_;
  std::size_t next_;
};

}  // namespace ladder
