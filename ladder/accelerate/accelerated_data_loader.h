// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "ladder/accelerate/accelerator_options.h"
#include "ladder/accelerate/gradient_state.h"
#include "ladder/comm/process_group.h"
#include "ladder/data/data_loader.h"

namespace ladder {

// What a prepared loader takes over from its Accelerator.
struct LoaderSetup {
  ProcessGroup group = ProcessGroup::single();
  torch::Device device = torch::kCPU;  // where batches are put
  DataLoaderConfiguration configuration = {};
  std::shared_ptr<GradientState> gradients;
};

// A DataLoader that gives each process its part of every batch, on its device.
//
// Accelerator::prepare makes one. It is walked like the loader it was made from, has the same
// order, and divides the batches as DataLoaderConfiguration says. In every mode all processes get
// the same number of batches; one without a sample gets an empty batch and takes the step with the
// others. size() is that number: with kPerProcess, less than the loader's own.
//
// It tells optimizer, scheduler and gather_for_metrics which batch of how many is in hand, and
// remembers the place, so that a checkpoint written in the middle of an epoch resumes there. Copies
// share one place. With dispatch_batches, making the walk and each step of it are collectives.
//
// Python's counterparts: DataLoaderShard and DataLoaderDispatcher of accelerate.data_loader.
class AcceleratedDataLoader {
 public:
  // Throws UsageError for a loader that is one rank's part already, such as one with a
  // DistributedSampler, and for a batch size that the mode cannot divide.
  AcceleratedDataLoader(DataLoader loader, LoaderSetup setup);

  // Chooses the order of the next walk. Epochs count from 0. Without it, a walk that came to its
  // end is followed by one through the next epoch. After load_state: the epoch that was broken off
  // goes on where it was; any other begins with its first batch.
  void set_epoch(std::int64_t epoch);

  // The epoch under way, or to be walked next.
  std::int64_t epoch() const;

  // The batch with which the next walk begins: 0, or where load_state or skip_first_batches say.
  std::int64_t first_batch() const;

  // Batches of an epoch.
  std::int64_t size() const { return loader_.size(); }
  const Dataset& dataset() const { return loader_.dataset(); }

  // The loader of this process's parts, without device, place and dispatch: for logs.
  const DataLoader& shard() const { return loader_; }

  // This loader without the first `batches` of every walk. Python: skip_first_batches.
  AcceleratedDataLoader without_first(std::int64_t batches) const;

  // The place, for a checkpoint.
  nlohmann::json state_dict() const;
  // Checks a place, and returns what goes there. Throws DataError naming `origin`, UsageError for a
  // place that another number of processes or another batch size counted.
  std::function<void()> plan_load(const nlohmann::json& state, std::string_view origin) const;

  using Iterator = BatchIterator;

  Iterator begin() const;
  std::default_sentinel_t end() const { return {}; }

 private:
  class Walk;
  struct Place {
    std::int64_t epoch = 0;
    std::int64_t done = 0;  // batches handed out and used in that epoch
    bool finished = false;  // the walk came to its end
    bool resumed = false;   // the next walk begins at `done`
  };

  DataLoader loader_;                                       // over this process's part
  std::shared_ptr<const BatchSampler> whole_;               // the batches before they were divided
  std::vector<std::shared_ptr<const BatchSampler>> parts_;  // of all ranks, to dispatch; else none
  LoaderSetup setup_;
  std::int64_t first_batch_ = 0;
  std::shared_ptr<Place> place_ = std::make_shared<Place>();
};

}  // namespace ladder
