// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "ladder/checkpoint/snapshot_options.h"
#include "ladder/checkpoint/training_state.h"
#include "ladder/comm/process_group.h"
#include "ladder/core/log.h"
#include "ladder/data/data_loader.h"
#include "ladder/monitor/run_setup.h"
#include "ladder/monitor/training_monitor.h"
#include "ladder/nn/model.h"
#include "ladder/optim/lr_scheduler.h"

namespace ladder {

// One checkpoint of a hand-written training loop, replaced as the run advances. A run that finds it
// resumes from it, so a launcher restarts a run with the command that started it.
//
//     Snapshot snapshot(options, group, *model, *optimizer, *scheduler);
//     const RunSetup setup{.group = group, .checkpoints = snapshot.hooks()};
//     TrainingMonitor monitor(monitor_options, setup, *model, loader.size());
//     snapshot.resume(loader, monitor, log);
//     for (std::int64_t epoch = loader.epoch() + 1; epoch <= epochs; ++epoch) {
//       loader.set_epoch(epoch - 1);
//       monitor.begin_epoch(epoch, epochs, loader.first_batch());
//       for (const Batch& batch : loader) {
//         ...  // forward, backward, optimizer.step()
//         monitor.step(batch, loss);
//         snapshot.after_step();
//       }
//       scheduler->step();
//       monitor.end_epoch();
//       snapshot.after_epoch();
//     }
//
// A kill at any moment leaves the complete old one or the complete new one (checkpoint_store.h). It
// holds what save_training_state writes, the position in the epoch as sampler.json, the monitor's
// counters as progress.json, and what the program adds.
//
// With the same number of ranks and threads, the run then equals an uninterrupted one bit for bit;
// over Gloo with three and more ranks, but for the last bits. Another number of ranks is accepted
// between epochs, and in global mode also within one; random generators are not restored then.
//
// Accelerator has the same for prepared objects. PyTorch's counterpart: the snapshot of its
// torchrun tutorial.
class Snapshot {
 public:
  // The objects must outlive the Snapshot; the model has a parameter. Without a path, no function
  // does anything.
  Snapshot(SnapshotOptions options, ProcessGroup group, torch::nn::Module& model,
           torch::optim::Optimizer& optimizer, LrScheduler& scheduler);
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  // Adds to what it holds, before resume(); objects must outlive the Snapshot:
  //     snapshot.add(json_part(scaler, "scaler.json"));  // a GradScaler
  //     snapshot.add(model_part("ema.safetensors", *ema));
  void add(CheckpointPart part) { added_.push_back(std::move(part)); }

  // For RunSetup: a run that a signal stops saves a snapshot.
  CheckpointHooks hooks();

  // Loads the snapshot if there is one, and sets the position of `loader`; both objects must
  // outlive the Snapshot. A line of the log shows whether the run resumes. A collective.
  //
  // Throws DataError for a snapshot that is damaged, and UsageError for one that another run uses
  // (both: in a durable store), for a position in an epoch of other batches, or for other sums or
  // micro-batches. Then nothing is changed.
  void resume(DataLoader& loader, TrainingMonitor& monitor, const Log& log);

  // Save a snapshot when it is time. Collectives then.
  void after_step();
  void after_epoch();

 private:
  std::string save();
  nlohmann::json position() const;
  std::function<void()> plan_position(const nlohmann::json& state, std::string_view origin);
  std::string order_digest(std::int64_t epoch) const;
  std::int64_t micro_batch() const;

  SnapshotOptions options_;
  ProcessGroup group_;
  TrainingState state_;
  CheckpointParts added_;
  DataLoader* loader_ = nullptr;
  TrainingMonitor* monitor_ = nullptr;
  Log log_;
  std::shared_ptr<const void> claim_;
  std::string last_;  // the path, once it was written or loaded
};

}  // namespace ladder
