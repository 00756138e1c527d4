// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ladder/data/batch_mode.h"
#include "ladder/data/sampler.h"

namespace ladder {

// How several ranks divide the samples among them. Three answers, and a fourth for programs that
// come from Accelerate, BatchSamplerShard:
//
//     DistributedSampler    training; each rank reads batches of its own size. The batch of the
//                           run grows with the number of ranks, and an epoch has fewer steps.
//     ShardedBatchSampler   training; the ranks divide each batch. The run takes the same steps
//                           with the same samples, whatever the number of ranks.
//     ExactEvalSampler      evaluation; every sample exactly once.
//
// The first two give all ranks the same number of batches, as training must: each step waits for
// all ranks. None of them talks to another rank: every rank computes the same shared order and
// takes its part of it.

struct DistributedSamplerOptions {
  std::int64_t world_size = 1;  // ranks that share the samples; >= 1
  std::int64_t rank = 0;        // of this process: 0 to world_size - 1
  bool shuffle = true;          // a new random order each epoch
  std::uint64_t seed = 42;      // of the shuffle; the same on all ranks. Python's default is 0
  bool drop_last = false;       // leave out what does not divide, instead of repeating samples
};

// Every world_size-th sample of the epoch's order, beginning with the rank-th.
//
// Equal, index by index, to Python's torch.utils.data.DistributedSampler. All ranks get parts of
// the same size. If world_size does not divide the number of samples, the order is filled up from
// its own beginning, as often as needed, or cut with drop_last: 10,000 samples on 7 ranks become
// 10,003, three of them seen twice, or 9,996. That is harmless in training and wrong in
// evaluation. LibTorch's own distributed samplers draw other orders and take no seed.
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

// Every world_size-th sample of the data set, beginning with the rank-th, and no sample twice.
//
// Sums over the ranks are those of one rank: nothing is repeated, so nothing is counted twice.
// Parts differ in size by at most one, and a rank may have no sample at all; so this is for
// evaluation only, with one sum over the ranks after the last batch. See evaluation_only().
//
// Taking every world_size-th sample, not one block per rank, makes each part similar to the whole:
// one half of a data set is often easier than the other. It is also the order of
// DistributedSampler without shuffle, without its repetitions. On one rank this is
// SequentialSampler.
class ExactEvalSampler : public Sampler {
 public:
  // `size` is the number of samples of the data set. Throws UsageError for an impossible rank.
  explicit ExactEvalSampler(std::int64_t size, ExactEvalSamplerOptions options = {});

  std::int64_t size() const override { return part_size(options_.rank); }
  std::vector<std::int64_t> order(std::int64_t epoch) const override;
  std::int64_t world_size() const override { return options_.world_size; }
  std::int64_t part_size(std::int64_t rank) const override;
  std::int64_t position(std::int64_t k) const override;
  // On one rank too: a program that trains with it alone would fail with two.
  bool evaluation_only() const override { return true; }

 private:
  std::int64_t size_;
  ExactEvalSamplerOptions options_;
};

struct ShardedBatchSamplerOptions {
  std::optional<std::int64_t> batch_size;  // samples a batch over all ranks; > 0; 64 if left out
  bool drop_last = false;                  // leave out a short last batch
  std::int64_t rank = 0;                   // of this process: 0 to world_size - 1
  std::int64_t world_size = 1;             // ranks that share each batch; >= 1
};

// This rank's slice of every batch: batch k of the run holds the same samples, in the same order,
// for every number of ranks.
//
// A batch is cut into world_size slices that follow each other; the first ranks take one sample
// more where it does not divide. 64 on 7 ranks are 10, 9, 9, 9, 9, 9, 9: dividing 64 by 7 and
// rounding down would train on 63. A slice may be empty: a last batch of 3 on 4 ranks is 1, 1, 1,
// 0, and the rank without a sample takes the step with the others.
//
//     auto order = std::make_shared<RandomSampler>(dataset->size(), seed);
//     DataLoader loader(dataset, {.batch_sampler = std::make_shared<ShardedBatchSampler>(
//                                     order, ShardedBatchSamplerOptions{.batch_size = 64, ...})});
//
// On one rank this is BatchSampler. In Python the nearest is Accelerate's split_batches, which
// refuses what does not divide: see BatchSamplerShard.
class ShardedBatchSampler : public BatchSampler {
 public:
  // `sampler` gives the whole order, on all ranks the same. Throws UsageError for an impossible
  // rank, a batch size below 1, or a sampler that gives one rank's part already.
  explicit ShardedBatchSampler(std::shared_ptr<const Sampler> sampler,
                               ShardedBatchSamplerOptions options = {});

  // Slices batches that are there already, of any sizes: those of another loader, or your own.
  // `whole` gives the same batches on all ranks; it has decided batch_size and drop_last, and
  // options that name them are refused. Throws UsageError too for an impossible rank, or if
  // `whole` gives one rank's part already.
  explicit ShardedBatchSampler(std::shared_ptr<const BatchSampler> whole,
                               ShardedBatchSamplerOptions options = {});

  std::int64_t size() const override { return whole_->size(); }
  std::vector<BatchIndices> plan(std::int64_t epoch) const override;
  std::int64_t world_size() const override { return world_size_; }
  std::int64_t whole_size() const override { return whole_->whole_size(); }
  bool evaluation_only() const override { return whole_->evaluation_only(); }

 private:
  ShardedBatchSampler(std::shared_ptr<const BatchSampler> whole, std::int64_t rank,
                      std::int64_t world_size);
  BatchIndices slice(const BatchIndices& whole) const;

  std::shared_ptr<const BatchSampler> whole_;  // the batches of all ranks
  std::int64_t rank_;
  std::int64_t world_size_;
};

struct DivideBatchesOptions {
  BatchMode mode = BatchMode::kGlobal;  // whose size is batch_size: of all ranks, or of each?
  std::int64_t batch_size = 64;         // > 0
  std::uint64_t seed = 42;              // of the shuffle; the same on all ranks
  std::int64_t rank = 0;                // of this process: 0 to world_size - 1
  std::int64_t world_size = 1;          // ranks that train together; >= 1
};

// This rank's batches of a shuffled training set of `size` samples: a ShardedBatchSampler in
// global mode, batches of a DistributedSampler in per-device mode.
std::shared_ptr<const BatchSampler> divide_batches(std::int64_t size, DivideBatchesOptions options);

}  // namespace ladder
