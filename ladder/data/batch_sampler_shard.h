// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ladder/data/sampler.h"

namespace ladder {

struct BatchSamplerShardOptions {
  bool split_batches = false;     // cut each batch among the ranks, instead of dealing whole ones
  bool even_batches = true;       // fill the last round up; dispatch_batches does so anyway
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
// In plain mode the batch of the run is world_size times that of the loader, and an epoch has
// fewer steps. In split mode it is that of the loader, which world_size must divide.
//
// The last round is the difference between the modes. It is
//
//     filled up              with samples from the beginning of the epoch, until all parts are
//                            whole: the default, and why an evaluation must not count everything
//     left as it is          even_batches = false: the last ranks get less, or an empty batch,
//                            with which they take the step. (From Accelerate they get no batch,
//                            and the other ranks wait for them.)
//     filled up to a number  dispatch_batches: what is left, cut into equal parts, with at most
//       that divides         world_size - 1 samples repeated; fewer samples in all than ranks
//                            leave the last ranks an empty batch
//     left out               if the other sampler has drop_last
//
// Repeated samples have positions at and past whole_size(): no two ranks have the same position,
// and what is below whole_size() is every sample once. (Accelerate knows them by their number,
// the `remainder` of the last batch.) BatchIndices::global_size counts the samples of a round over
// all ranks, the repeated ones included.
//
// On one rank the batches are those of the other sampler, in every mode; nothing is filled up.
// ShardedBatchSampler divides batches of any size, repeats nothing and keeps the batch of the run
// the same for every number of ranks; prefer it unless a program must equal one of Accelerate's.
// Python's counterparts: accelerate.data_loader.BatchSamplerShard, and DataLoaderDispatcher for
// dispatch_batches.
class BatchSamplerShard : public BatchSampler {
 public:
  // `whole` gives the batches, on all ranks the same. Throws UsageError for an impossible rank, a
  // `whole` that gives one rank's part already, and in split mode for a batch size that world_size
  // does not divide. (Accelerate takes batches of one sample when it dispatches and splits them,
  // and then reads an epoch of which it uses the last sample only.)
  explicit BatchSamplerShard(std::shared_ptr<const BatchSampler> whole,
                             BatchSamplerShardOptions options = {});

  // Number of rounds, which is that of the batches of each rank; some may be empty.
  std::int64_t size() const override;

  // Throws UsageError if a batch of `whole` before the last, or with drop_last any, has not
  // batch_size() samples: such batches have no equal parts.
  std::vector<BatchIndices> plan(std::int64_t epoch) const override;

  std::int64_t world_size() const override { return options_.world_size; }
  std::int64_t whole_size() const override { return whole_->whole_size(); }

  bool evaluation_only() const override { return whole_->evaluation_only(); }

 private:
  struct Cut {
    std::int64_t part;       // samples of a rank, but for the last ranks that get less
    std::int64_t filled_up;  // samples of the round over all ranks, repeated ones included
  };

  std::int64_t round_size() const;  // samples of every round but the last
  BatchIndices part_of_round(const BatchIndices& order, std::int64_t round) const;
  Cut cut_of(std::int64_t count, std::int64_t samples) const;

  std::shared_ptr<const BatchSampler> whole_;
  BatchSamplerShardOptions options_;
};

}  // namespace ladder
