// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "ladder/accelerate/accelerator_options.h"
#include "ladder/accelerate/gradient_state.h"
#include "ladder/comm/process_group.h"
#include "ladder/data/data_loader.h"

namespace ladder {

// The part of an Accelerator that a prepared loader needs.
struct LoaderSetup {
  ProcessGroup group = ProcessGroup::single();
  torch::Device device = torch::kCPU;  // of the batches; page-locked for a GPU only
  DataLoaderConfiguration configuration = {};
  std::shared_ptr<GradientState> gradients;
  std::int64_t micro_batch = 0;  // > 0: parts are whole micro-batches; kGlobal only
};

// A DataLoader that gives each process its part of every batch, on its device.
//
// Accelerator::prepare makes one. It has the order of the loader that it was made from, and divides
// the batches by DataLoaderConfiguration. In every mode all processes get the same number of
// batches, size(); with kPerProcess, fewer than the loader's own. A process without a sample gets
// an empty batch and takes the step with the others.
//
// It gives optimizer, scheduler and gather_for_metrics the number of the current batch, and keeps
// its position, so that a checkpoint written in the middle of an epoch resumes there. Copies share
// one position. With dispatch_batches, begin() and each batch are collectives; the construction is
// one with several processes.
//
// Python's counterparts: DataLoaderShard and DataLoaderDispatcher of accelerate.data_loader.
class AcceleratedDataLoader {
 public:
  // Throws UsageError for a loader that is one rank's part already, such as one with a
  // DistributedSampler, and for a batch size that the mode cannot divide. Throws DistributedError
  // unless all processes have one data set and one order: compares the number of samples, the order
  // of the first epoch, and sample 0 if two reads of it are equal.
  AcceleratedDataLoader(DataLoader loader, LoaderSetup setup);

  // Chooses the order of the next pass. Epochs count from 0. Without it, a complete pass is
  // followed by one over the next epoch. After load_state, the interrupted epoch continues at its
  // position; any other begins with its first batch.
  void set_epoch(std::int64_t epoch);

  // Ends the current epoch early: the next pass is over the next epoch, also after load_state.
  void end_epoch() { position_->finished = true; }

  // The next pass begins with this batch of this epoch, as after load_state.
  void resume_at(std::int64_t epoch, std::int64_t batch) {
    *position_ = {.epoch = epoch, .done = batch, .resumed = true};
  }

  // Whether load_state has set the position, of a run with another number of batches per epoch.
  bool resumes_other_batches() const {
    return position_->saved_batches && *position_->saved_batches != size();
  }

  // The current epoch, or that of the next pass.
  std::int64_t epoch() const;

  // The batch with which the next pass begins: 0, unless load_state or skip_first_batches set it.
  std::int64_t first_batch() const;

  // Batches per epoch.
  std::int64_t size() const { return loader_.size(); }
  const Dataset& dataset() const { return loader_.dataset(); }

  // The loader of this process's parts, without device, position and dispatch: for logs.
  const DataLoader& shard() const { return loader_; }

  // This loader without the first `batches` of every pass. Python: skip_first_batches.
  AcceleratedDataLoader without_first(std::int64_t batches) const;

  bool is_only_copy() const { return position_.use_count() == 1; }
  bool is_copy_of(const AcceleratedDataLoader& other) const { return position_ == other.position_; }

  // The position, for a checkpoint.
  nlohmann::json state_dict() const;
  // Checks a position, and returns the function that sets it. Throws DataError naming `origin`, and
  // UsageError for a position in other batches, as after a change of the batch size.
  std::function<void()> plan_load(const nlohmann::json& state, std::string_view origin) const;

  using Iterator = BatchIterator;

  Iterator begin() const;
  std::default_sentinel_t end() const { return {}; }

 private:
  class Source;
  struct Position {
    std::int64_t epoch = 0;
    std::int64_t done = 0;                      // batches of that epoch that were used
    bool finished = false;                      // the pass was complete
    bool resumed = false;                       // the next pass begins at `done`
    std::optional<std::int64_t> saved_batches;  // per epoch of the run that load_state resumes
  };

  DataLoader loader_;                                       // over this process's part
  std::shared_ptr<const BatchSampler> whole_;               // the undivided batches
  std::vector<std::shared_ptr<const BatchSampler>> parts_;  // of all ranks, to dispatch; else none
  LoaderSetup setup_;
  std::int64_t first_batch_ = 0;
  std::shared_ptr<Position> position_ = std::make_shared<Position>();
};

}  // namespace ladder
