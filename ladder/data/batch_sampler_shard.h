// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ladder/data/sampler.h"

namespace ladder {

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
// Batches are dealt in rounds, and all ranks take a step in each. Ten samples in batches of four
// on two ranks:
//
//     batches                   0 1 2 3 | 4 5 6 7 | 8 9
//
//                               rank 0              rank 1
//     plain                     0 1 2 3 | 8 9 0 1   4 5 6 7 | 2 3 4 5    a whole batch each
//     split_batches             0 1 | 4 5 | 8 9     2 3 | 6 7 | 0 1      a part of each batch
//     plain, dispatch_batches   0 1 2 3 | 8         4 5 6 7 | 9          the last two shared
//
// In plain mode the global batch is world_size batches of the loader, and an epoch has fewer steps.
// In split mode it is one batch of the loader, whose size must be a multiple of world_size.
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
// Repeated samples have positions from whole_size() on, different on each rank; the positions
// below it are every sample once. BatchIndices::global_size counts the samples of a round over all
// ranks, repeated ones included. On one rank the batches are those of `whole` in every mode.
//
// Use ShardedBatchSampler unless a program must equal one of Accelerate's. Python's counterparts:
// accelerate.data_loader.BatchSamplerShard, and DataLoaderDispatcher for dispatch_batches.
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

}  // namespace ladder
