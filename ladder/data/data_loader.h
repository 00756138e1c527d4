// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ladder/data/batch.h"
#include "ladder/data/dataset.h"
#include "ladder/data/sampler.h"

namespace ladder {

struct DataLoaderOptions {
  std::optional<std::int64_t> batch_size;             // samples per batch; > 0; default 64
  bool shuffle = false;                               // a new random order each epoch
  std::shared_ptr<const Sampler> sampler;             // an order of your own; excludes shuffle
  std::uint64_t seed = 42;                            // of the shuffle
  bool drop_last = false;                             // skip a short last batch
  std::shared_ptr<const BatchSampler> batch_sampler;  // batches of your own; excludes the above
  int num_workers = 0;                                // threads preparing batches; 0 = none
  bool pin_memory = false;  // page-locked batches, for copies to a GPU; no effect on samples there
  std::shared_ptr<const Transform> transform;  // random changes of the samples; empty = none
};

// The batches of one pass over an epoch, one after the other; nothing at the end.
class BatchSource {
 public:
  BatchSource() = default;
  virtual ~BatchSource() = default;
  BatchSource(const BatchSource&) = delete;
  BatchSource& operator=(const BatchSource&) = delete;

  virtual std::optional<Batch> next() = 0;
};

// For range-based for; the end is std::default_sentinel. Requests the next batch when the loop has
// finished with the one before.
class BatchIterator {
 public:
  explicit BatchIterator(std::unique_ptr<BatchSource> source) : source_(std::move(source)) {
    ++*this;
  }

  const Batch& operator*() const { return batch_; }
  BatchIterator& operator++() {
    auto next = source_->next();
    at_end_ = !next.has_value();
    batch_ = std::move(next).value_or(Batch{});
    return *this;
  }
  bool operator==(std::default_sentinel_t) const { return at_end_; }

 private:
  std::unique_ptr<BatchSource> source_;
  Batch batch_;
  bool at_end_ = false;
};

// The batches of a data set, in the order of the epoch.
//
//     DataLoader loader(dataset, {.batch_size = 64, .shuffle = true});
//     for (int epoch = 0; epoch < epochs; ++epoch) {
//       loader.set_epoch(epoch);  // without it every epoch has the same order
//       for (const Batch& batch : loader) ...
//     }
//
// Every number of workers gives the same batches in the same order. An exception in a worker
// reaches the loop.
//
// Many ranks: each makes a loader of its own, with a sampler that gives this rank's part.
//
//     sampler = DistributedSampler          batch_size samples on every rank
//     batch_sampler = ShardedBatchSampler   batch_size samples, divided over the ranks
//     sampler = ExactEvalSampler            evaluation: every sample once, no training
//
// Each begin() starts an independent pass. Python's counterpart: torch.utils.data.DataLoader.
class DataLoader {
 public:
  // Throws UsageError for a null data set, a batch size below 1, a negative number of workers,
  // options that exclude each other, or a transform together with an evaluation sampler.
  explicit DataLoader(std::shared_ptr<const Dataset> dataset, DataLoaderOptions options = {});

  // Chooses the order of the next pass. Epochs count from 0.
  // Throws UsageError for an evaluation sampler: only training has epochs.
  void set_epoch(std::int64_t epoch);

  // Chooses the epoch of the next pass and the batch with which it begins, to resume a run. Holds
  // until set_epoch() chooses another epoch.
  void resume_at(std::int64_t epoch, std::int64_t first_batch);

  // The batch with which the next pass begins: 0, unless resume_at() set it.
  std::int64_t first_batch() const { return first_batch_; }

  // Number of batches in an epoch.
  std::int64_t size() const { return batches_->size(); }
  const Dataset& dataset() const { return *dataset_; }

  // The parts of the loader; see with_batches.
  std::shared_ptr<const Dataset> shared_dataset() const { return dataset_; }
  const DataLoaderOptions& options() const { return options_; }  // as given
  const std::shared_ptr<const BatchSampler>& batch_sampler() const { return batches_; }

  // The epoch of the next pass: the last one given to set_epoch() or resume_at().
  std::int64_t epoch() const { return epoch_; }

  // The batches of the next pass; reads no sample.
  std::vector<BatchIndices> batch_indices() const { return batches_->batches_of(epoch_); }

  using Iterator = BatchIterator;

  Iterator begin() const { return begin_at(first_batch_); }

  // A pass that begins with batch number `batch` of the epoch, counted from 0, to resume a run. It
  // does not read the batches before it; the others equal those of a full pass, bit by bit.
  // begin_at(size()) gives no batch. Throws UsageError unless 0 <= batch <= size().
  Iterator begin_at(std::int64_t batch) const;

  std::default_sentinel_t end() const { return {}; }

 private:
  std::shared_ptr<const Dataset> dataset_;
  DataLoaderOptions options_;
  std::shared_ptr<const BatchSampler> batches_;
  std::int64_t epoch_ = 0;
  std::int64_t first_batch_ = 0;
};

// `loader` with the same samples in other batches.
DataLoader with_batches(const DataLoader& loader, std::shared_ptr<const BatchSampler> batches);

// `loader` with the first `batches` batches of each epoch only, to try out a program. Throws
// UsageError unless batches >= 1.
DataLoader limit_batches(const DataLoader& loader, std::int64_t batches);

}  // namespace ladder
