// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ladder/data/batch_mode.h"
#include "ladder/data/sampler.h"

namespace ladder {

// How several ranks divide the samples. ShardedBatchSampler divides a batch, DistributedSampler an
// epoch:
//
//     ShardedBatchSampler   training; the ranks divide each batch. The run takes the same steps
//                           with the same samples for every number of ranks.
//     DistributedSampler    training; each rank reads batches of its own size. The global batch
//                           grows with the number of ranks, and an epoch has fewer steps.
//     ExactEvalSampler      evaluation; every sample exactly once.
//     BatchSamplerShard     programs that must equal one of Accelerate's.
//
// The first two give all ranks the same number of batches, as training requires. There is no
// communication: every rank computes the shared order and takes its part.

struct DistributedSamplerOptions {
  std::int64_t world_size = 1;  // ranks that share the samples; >= 1
  std::int64_t rank = 0;        // of this process: 0 to world_size - 1
  bool shuffle = true;          // a new random order each epoch
  std::uint64_t seed = 42;      // of the shuffle; the same on all ranks. Python's default is 0
  bool drop_last = false;       // drop the samples that do not divide, instead of repeating some
};

// Every world_size-th sample of the epoch's order, beginning with number `rank`.
//
// Equal, index by index, to Python's torch.utils.data.DistributedSampler. All ranks get parts of
// the same size: if world_size does not divide the number of samples, the order is padded from its
// own beginning, or cut with drop_last. Wrong in evaluation.
class DistributedSampler : public Sampler {
 public:
  // `size` is the number of samples of the data set. Throws UsageError for an impossible rank.
  explicit DistributedSampler(std::int64_t size, DistributedSamplerOptions options = {});

  std::int64_t size() const override;
  std::vector<std::int64_t> order(std::int64_t epoch) const override;
  std::int64_t world_size() const override { return options_.world_size; }
  std::int64_t whole_size() const override { return whole_->size(); }
  std::int64_t position(std::int64_t k) const override;

 private:
  DistributedSamplerOptions options_;
  std::shared_ptr<const Sampler> whole_;  // the order that all ranks share
};

struct ExactEvalSamplerOptions {
  std::int64_t world_size = 1;  // ranks that share the samples; >= 1
  std::int64_t rank = 0;        // of this process: 0 to world_size - 1
};

// Every world_size-th sample of the data set, beginning with number `rank`; no sample twice.
//
// Parts differ in size by at most one, and a part may be empty; so this is for evaluation only,
// with one sum over the ranks after the last batch. See evaluation_only().
class ExactEvalSampler : public Sampler {
 public:
  // `size` is the number of samples of the data set. Throws UsageError for an impossible rank.
  explicit ExactEvalSampler(std::int64_t size, ExactEvalSamplerOptions options = {});

  std::int64_t size() const override { return part_size(options_.rank); }
  std::vector<std::int64_t> order(std::int64_t epoch) const override;
  std::int64_t world_size() const override { return options_.world_size; }
  std::int64_t part_size(std::int64_t rank) const override;
  std::int64_t position(std::int64_t k) const override;
  // On one rank too: a program that trains with it on one rank would fail on two.
  bool evaluation_only() const override { return true; }

 private:
  std::int64_t size_;
  ExactEvalSamplerOptions options_;
};

struct ShardedBatchSamplerOptions {
  std::optional<std::int64_t> batch_size;  // samples per batch over all ranks; > 0; default 64
  bool drop_last = false;                  // drop a short last batch
  std::int64_t rank = 0;                   // of this process: 0 to world_size - 1
  std::int64_t world_size = 1;             // ranks that share each batch; >= 1
  std::int64_t micro_batch = 0;            // > 0: slices are whole micro-batches; see NumItems
};

// This rank's slice of every batch: batch k of the run holds the same samples, in the same order,
// for every number of ranks.
//
// A batch is cut into world_size consecutive slices; the first ranks take one sample, or one
// micro-batch, more if it does not divide: 64 on 7 ranks are 10, 9, 9, 9, 9, 9, 9. A slice may be
// empty, and the rank still takes the step.
//
//     auto order = std::make_shared<RandomSampler>(dataset->size(), seed);
//     DataLoader loader(dataset, {.batch_sampler = std::make_shared<ShardedBatchSampler>(
//                                     order, ShardedBatchSamplerOptions{.batch_size = 64, ...})});
//
// On one rank this is BatchSampler.
class ShardedBatchSampler : public BatchSampler {
 public:
  // `sampler` gives the whole order, on all ranks the same. Throws UsageError for an impossible
  // rank, a batch size below 1, or a sampler that is one rank's part already.
  explicit ShardedBatchSampler(std::shared_ptr<const Sampler> sampler,
                               ShardedBatchSamplerOptions options = {});

  // Slices existing batches of any sizes, the same on all ranks. They determine batch_size and
  // drop_last. Throws UsageError for options that set these, for an impossible rank, or if `whole`
  // is one rank's part already.
  explicit ShardedBatchSampler(std::shared_ptr<const BatchSampler> whole,
                               ShardedBatchSamplerOptions options = {});

  std::int64_t size() const override { return whole_->size(); }
  std::vector<BatchIndices> batches_of(std::int64_t epoch) const override;
  std::int64_t world_size() const override { return world_size_; }
  std::int64_t whole_size() const override { return whole_->whole_size(); }
  std::int64_t micro_batch() const override { return micro_batch_; }
  bool evaluation_only() const override { return whole_->evaluation_only(); }

 private:
  ShardedBatchSampler(std::shared_ptr<const BatchSampler> whole, std::int64_t rank,
                      std::int64_t world_size, std::int64_t micro_batch);
  BatchIndices slice(const BatchIndices& whole) const;

  std::shared_ptr<const BatchSampler> whole_;  // the batches of all ranks
  std::int64_t rank_;
  std::int64_t world_size_;
  std::int64_t micro_batch_;
};

struct BatchSamplerShardOptions {
  bool split_batches = false;     // cut each batch among the ranks, instead of dealing whole ones
  bool even_batches = true;       // pad the last round; dispatch_batches does so anyway
  bool dispatch_batches = false;  // as when rank 0 reads for all; changes the last round only
  std::int64_t rank = 0;          // of this process: 0 to world_size - 1
  std::int64_t world_size = 1;    // ranks that share the batches; >= 1
};

// One rank's part of the batches of another sampler, divided as Hugging Face Accelerate divides
// them, index by index.
//
// Batches are dealt in rounds, and all ranks take a step in each. In plain mode each rank gets a
// whole batch, and an epoch has fewer steps; in split mode a part of each batch, whose size must be
// a multiple of world_size. docs/reference/5-accelerator.md, "Loader modes", has an example.
//
// The modes differ in the last round:
//
//     default                padded with samples from the beginning of the epoch, so an evaluation
//                            must not count all of them
//     even_batches = false   not padded: the last ranks get a shorter or an empty batch, and still
//                            take the step (in Accelerate they get none, and the others wait)
//     dispatch_batches       cut into equal parts, with at most world_size - 1 samples repeated;
//                            with fewer samples than ranks, the last ranks get an empty batch
//     drop_last (of `whole`) dropped
//
// Repeated samples have positions from whole_size() on, different on each rank.
// BatchIndices::global_size counts the samples of a round over all ranks, repeated ones included.
// Python's counterparts: accelerate.data_loader.BatchSamplerShard, and DataLoaderDispatcher for
// dispatch_batches.
class BatchSamplerShard : public BatchSampler {
 public:
  // `whole` gives the batches, on all ranks the same. Throws UsageError for an impossible rank, for
  // a `whole` that is one rank's part already, and in split mode for a batch size that is not a
  // multiple of world_size.
  explicit BatchSamplerShard(std::shared_ptr<const BatchSampler> whole,
                             BatchSamplerShardOptions options = {});

  // Number of rounds: the number of batches of each rank, empty ones included.
  std::int64_t size() const override;

  // Throws UsageError if a batch of `whole` before the last, or with drop_last any, has not
  // batch_size() samples: such batches have no equal parts.
  std::vector<BatchIndices> batches_of(std::int64_t epoch) const override;

  std::int64_t world_size() const override { return options_.world_size; }
  std::int64_t whole_size() const override { return whole_->whole_size(); }
  bool evaluation_only() const override { return whole_->evaluation_only(); }

 private:
  std::int64_t round_size() const;  // samples of every round but the last
  BatchIndices part_of_round(const BatchIndices& order, std::int64_t round) const;

  std::shared_ptr<const BatchSampler> whole_;
  BatchSamplerShardOptions options_;
};

struct DivideBatchesOptions {
  BatchMode mode = BatchMode::kGlobal;  // whether batch_size counts all ranks or each
  std::int64_t batch_size = 64;         // > 0
  std::uint64_t seed = 42;              // of the shuffle; the same on all ranks
  std::int64_t rank = 0;                // of this process: 0 to world_size - 1
  std::int64_t world_size = 1;          // ranks that train together; >= 1
  std::int64_t micro_batch = 0;         // as for ShardedBatchSampler; global mode only
};

// This rank's batches of a shuffled training set of `size` samples: a ShardedBatchSampler in
// global mode, batches of a DistributedSampler in per-device mode.
std::shared_ptr<const BatchSampler> divide_batches(std::int64_t size, DivideBatchesOptions options);

}  // namespace ladder
