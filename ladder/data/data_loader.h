// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <vector>

#include "ladder/data/batch_iterator.h"
#include "ladder/data/dataset.h"
#include "ladder/data/sampler.h"
#include "ladder/data/transform.h"

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

// Walks once through a data set, batch by batch, in the order of the epoch.
//
//     DataLoader loader(dataset, {.batch_size = 64, .shuffle = true});
//     for (int epoch = 0; epoch < epochs; ++epoch) {
//       loader.set_epoch(epoch);  // without it every epoch has the same order
//       for (const Batch& batch : loader) ...
//     }
//
// Workers change when batches are made, never their content: every number of workers
// gives the same batches in the same order. An exception in a worker reaches the loop.
//
// Many ranks: each makes a loader of its own, with a sampler that gives this rank's part.
//
//     sampler = DistributedSampler          batch_size samples on every rank
//     batch_sampler = ShardedBatchSampler   batch_size samples, divided over the ranks
//     sampler = ExactEvalSampler            evaluation: every sample once, no training
//
// One walk at a time: a second begin() while another is under way gets a walk of its own.
// Python's counterpart: torch.utils.data.DataLoader.
class DataLoader {
 public:
  // Throws UsageError for a batch size below 1, a negative number of workers, options that
  // exclude each other, or a transform together with a sampler for evaluation.
  explicit DataLoader(std::shared_ptr<const Dataset> dataset, DataLoaderOptions options = {});

  // Chooses the order of the next walk. Epochs count from 0.
  // Throws UsageError if the sampler is for evaluation: only training has epochs.
  void set_epoch(std::int64_t epoch);

  // Number of batches in an epoch.
  std::int64_t size() const { return batches_->size(); }
  const Dataset& dataset() const { return *dataset_; }

  // The parts of the loader. For a loader with the same samples in other batches, take these, set
  // batch_sampler in the options, and clear what excludes it (batch_size, shuffle, sampler and
  // drop_last).
  std::shared_ptr<const Dataset> shared_dataset() const { return dataset_; }
  const DataLoaderOptions& options() const { return options_; }  // as they were given
  const std::shared_ptr<const BatchSampler>& batch_sampler() const { return batches_; }

  // The epoch of the next walk: the last one given to set_epoch().
  std::int64_t epoch() const { return epoch_; }

  // The batches of the next walk, none of them read.
  std::vector<BatchIndices> plan() const { return batches_->plan(epoch_); }

  using Iterator = BatchIterator;

  Iterator begin() const { return begin_at(0); }

  // A walk that begins with batch number `batch` of the epoch, counted from 0, to resume a run in
  // the middle. The batches before it are not read; those from it on are the ones of a full walk,
  // bit by bit. size() is the end, and gives no batch.
  // Throws UsageError unless 0 <= batch <= size().
  Iterator begin_at(std::int64_t batch) const;

  std::default_sentinel_t end() const { return {}; }

 private:
  std::shared_ptr<const Dataset> dataset_;
  DataLoaderOptions options_;
  std::shared_ptr<const BatchSampler> batches_;
  std::int64_t epoch_ = 0;
};

}  // namespace ladder
